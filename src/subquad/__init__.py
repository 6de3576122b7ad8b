"""Efficient attention: any mechanism in any backbone on any task, measured against the papers.

Public are the names in `subquad.__all__`: every attention (DBA, Linformer, ...), the types of their arguments, and
functions that build attentions and models. They are imported at their first use, because torch takes a second.
Everything else may change between versions.
"""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import subquad.utils.torchvision_shim  # noqa: F401

_PUBLIC = {
    "attention.base": ("Attention", "StatelessAttention"),
    "library.building": ("build_attention", "build_model"),
    "library.exchange": ("Swapped", "swap"),
    "library.implementations": ("register_with_transformers",),
    "library.saved": ("load_swapped",),
    "training.bundle": ("load_pretrained",),
    "specs": ("DataSpec", "ImageSpec", "Masks", "Pattern", "Site", "TextSpec", "VQASpec"),
    "utils.derivatives": ("plain_operators",),
    "utils.errors": ("UserError",),
    "utils.fixed_weights": ("fixed_weights",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("subquad")
    if name == "__all__":
        return sorted([*_mechanisms(), *(public for names in _PUBLIC.values() for public in names)])
    with _no_collection():
        for module, names in _PUBLIC.items():
            if name in names:
                return getattr(importlib.import_module(f"subquad.{module}"), name)
        # Names of classes begin with a capital; other names are those of modules, which Python looks up here first.
        if name[0].isupper() and name in _mechanisms():
            return _mechanisms()[name]
    raise AttributeError(f"module 'subquad' has no attribute {name!r}")


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: imports make objects that stay, and looking at them again takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__"), "__version__"]


@cache
def _mechanisms() -> dict[str, type]:
    """Every concrete class of subquad.attention by its name."""
    import inspect
    from pkgutil import iter_modules

    import subquad.attention
    from subquad.attention.base import Attention

    files = (
        importlib.import_module(f"subquad.attention.{file.name}") for file in iter_modules(subquad.attention.__path__)
    )
    return {
        name: item
        for file in files
        for name, item in vars(file).items()
        if isinstance(item, type) and issubclass(item, Attention) and item.__module__ == file.__name__
        and not inspect.isabstract(item) and not name.startswith("_")
    }  # fmt: skip
