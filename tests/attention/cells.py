"""The cells of the contract: every mechanism in every wiring it declares, at sizes that a test can afford."""

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import made, mechanisms, own_attentions
from torch import Tensor, nn

import subquad.attention
import subquad.backbones
from subquad.attention.base import Attention
from subquad.backbones.encoder import class_of, is_standalone
from subquad.specs import Masks, Pattern, Site
from subquad.utils.setting_types import CheckedSettings, setting_types

BATCH, DIM, HEADS, CONTEXT = 3, 24, 4, 13
QUERIES = {Pattern.SELF: CONTEXT, Pattern.CROSS: 11}
SMALL: dict[str, Any] = {
    "k": 5, "d_p": 5, "d_in": 12, "l": 5, "block": 2, "window": 4, "chunk": 4, "span": 4, "landmarks": 4, "rank": 3,
    "features": 10, "bits": 3, "anchors": 5, "neighbours": 2, "hashes": 2, "random_blocks": 1, "kernel": 3,
    "summary": 2, "agents": 5, "latents": 5,
}  # fmt: skip
"""Sizes that compress 13 tokens, in place of the configured ones, which would not."""


def site(pattern: Pattern, **changes: Any) -> Site:
    """A site of width 24 with 4 heads, 13 context tokens and, in cross-attention, 11 queries."""
    small = Site(pattern=pattern, dim=DIM, heads=HEADS, query_len=QUERIES[pattern], context_len=CONTEXT)
    return replace(small, **changes)


def shrunk(factory: Callable[..., Attention]) -> Callable[..., Attention]:
    """The factory with the sizes of SMALL that it takes."""
    configured = getattr(factory, "keywords", {})
    return functools.partial(factory, **{key: size for key, size in SMALL.items() if key in configured})


def factories(config: pytest.Config) -> dict[str, Callable[..., Attention]]:
    """Every configs/attention/*.yaml, or the attentions that --attention names."""
    if named := own_attentions(config):
        return {name: factory for name, factory in named.items() if not is_standalone(factory)}
    return {name: made("attention", name) for name in mechanisms()}


def settings_of_classes(config: pytest.Config) -> list[tuple[type, str]]:
    """The constructor arguments that are settings, of every class in the packages of attentions and backbones.

    With --attention, of the classes that it names.
    """
    owners = {class_of(factory) for factory in own_attentions(config).values()}
    if not owners:
        packages = (subquad.attention, subquad.backbones)
        names = [f"{package.__name__}.{file.name}" for package in packages for file in iter_modules(package.__path__)]
        modules = [importlib.import_module(name) for name in names]
        owners = {owner for module in modules for owner in vars(module).values() if _is_public(owner, module)}
    return [
        (owner, name)
        for owner in sorted(owners, key=lambda owner: owner.__name__)
        if issubclass(owner, CheckedSettings) and "__init__" in vars(owner)
        for name in setting_types(inspect.unwrap(vars(owner)["__init__"]))
    ]


def _is_public(item: Any, module: ModuleType) -> bool:
    """Whether this is a class of the module's own that can be built."""
    here = isinstance(item, type) and item.__module__ == module.__name__
    return here and not item.__name__.startswith("_") and not inspect.isabstract(item)


def first_of_each_class(named: dict[str, Callable[..., Attention]]) -> dict[str, Callable[..., Attention]]:
    """One choice of each class, for tests of what depends on the class alone."""
    first = {class_of(factory): name for name, factory in reversed(named.items())}
    return {name: factory for name, factory in named.items() if name in first.values()}


def declared(factory: Callable[..., Attention]) -> frozenset[Pattern]:
    """The wirings of the class behind a factory."""
    return getattr(class_of(factory), "patterns", frozenset(Pattern))


@dataclass(frozen=True)
class Cell:
    """One mechanism in one wiring."""

    factory: Callable[..., Attention]
    pattern: Pattern

    def build(self, **changes: Any) -> Attention:
        return self.factory(site=site(self.pattern, **changes)).double()

    def stack(self, layers: int, **changes: Any) -> nn.ModuleList:
        return nn.ModuleList(self.build(layer=i, layers=layers, **changes) for i in range(layers))

    def inputs(self, queries: int | None = None, context: int = CONTEXT, dim: int = DIM) -> tuple[Tensor, Tensor]:
        """x and context; the same tensor in self-attention."""
        tokens = torch.randn(BATCH, context, dim, dtype=torch.float64)
        if self.pattern is Pattern.SELF:
            return tokens, tokens
        return torch.randn(BATCH, queries or QUERIES[self.pattern], dim, dtype=torch.float64), tokens

    def masks(self) -> Masks:
        """A full row, a long one and one of a single token; queries and context differ in cross-attention."""
        context = prefix([13, 9, 1], CONTEXT)
        return Masks(context if self.pattern is Pattern.SELF else prefix([6, 11, 1], QUERIES[self.pattern]), context)


def prefix(lengths: list[int], size: int) -> Tensor:
    """The mask of sequences that are padded on the right."""
    return torch.arange(size) < torch.tensor(lengths)[:, None]


def after(x: Tensor, y: Tensor) -> Tensor:
    """The residual connection and the norm after an attention."""
    return F.layer_norm(x + y, x.shape[-1:])


def run(layers: nn.ModuleList, x: Tensor, context: Tensor, masks: Masks | None = None) -> Tensor:
    """Runs the layers as in a transformer: with residual connections and norms, and each carry passed to the next."""
    carry, masks, alone = None, masks or Masks(), x is context
    for layer in layers:
        y, carry = layer(x, x if alone else context, masks, carry)
        x = after(x, y)
    return x
