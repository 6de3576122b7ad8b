"""The code of the user's own classes, which a run depends on as on its settings.

This module imports none of them.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from subquad.utils.errors import UserError

_NOT_OWN = {
    "subquad", "hydra", "hydra_plugins", "optuna", "pytorch_lightning", "timm", "torch", "torchmetrics", "torchvision",
    "transformers",
}  # fmt: skip
_FIRST: dict[str, str] = {}
"""The hash of each class when this process first asked for it."""


def targets(node: Any) -> Iterator[str]:
    """Every `_target_` of a configuration of plain mappings and lists."""
    if isinstance(node, Mapping):
        yield from ([str(node["_target_"])] if "_target_" in node else [])
    for part in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
        yield from targets(part)


def own_code(node: Any) -> dict[str, str]:
    """By `_target_`, a hash of the code of each class that neither Subquad nor what it is built on has.

    The code is the module of the class and each module that it, or one of these, imports from the same folder; of an
    installed package, from the same package. Empty for Python's own, and where there is no such module.

    Raises UserError if the code has changed in the time of this process, which may have imported it before.
    """
    found = {target: _hash(target) for target in targets(node) if target.partition(".")[0] not in _NOT_OWN}
    for target, code in found.items():
        if _FIRST.setdefault(target, code) != code:
            raise UserError(f"The code of {target} has changed while this command runs; start the command again.")
    return found


def _hash(target: str) -> str:
    root = target.partition(".")[0]
    try:
        spec = find_spec(root)
    except ValueError:  # the module of a script has none
        spec = None
    place = spec and next(iter(spec.submodule_search_locations or ()), spec.origin)
    if not place or Path(place).parent == Path(sysconfig.get_path("stdlib")):
        return ""
    folder, files, names = Path(place).parent, dict[str, bytes](), [target]
    while names:
        parts = names.pop().split(".")
        if parts[0] != root and folder.name in ("site-packages", "dist-packages"):
            continue
        for end in range(1, len(parts) + 1):
            stem = "/".join(parts[:end])
            for name in (f"{stem}/__init__.py", f"{stem}.py"):
                if name not in files and (folder / name).is_file():
                    files[name] = (folder / name).read_bytes()
                    names += _imported(files[name], tuple(name.split("/")[:-1]))
    content = [part for name in sorted(files) for part in (name.encode(), files[name])]
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:12] if files else ""


@cache
def _imported(code: bytes, package: tuple[str, ...]) -> list[str]:
    """The full names of what a module of a package imports, of modules and of what is in them."""
    names = []
    with suppress(SyntaxError, ValueError):  # which the import will report
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else ()
                base = [*above, *filter(None, [node.module])]
                names += [".".join([*base, alias.name]) for alias in node.names]
    return names
