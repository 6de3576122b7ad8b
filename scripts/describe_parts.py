"""Tables inside pages that are written by hand: docs/library.md and CONTRIBUTING.md."""

import inspect
import tomllib
from collections import defaultdict
from importlib import import_module

from subquad.config.choices import CONFIGS, options
from subquad.library.building import attention_factory
from subquad.library.implementations import PREFIX, simplest, unfit
from subquad.library.rotary import turns

HEAD = """| mechanism | layer | `swap` | `attn_implementation` |
|---|---|---|---|
"""


def ways_in() -> str:
    """Where each mechanism can stand: one row for each class, in the order of its name."""
    rows = defaultdict(list)
    for name in options("attention"):
        factory, sizes = attention_factory(name), {"dim": 32, "heads": 4, "max_len": 64, "grid": (8, 8)}
        built, simple = factory(**sizes), simplest(factory, **sizes)
        rows[type(built).__name__].append((name, turns(built), unfit(simple)))
    lines = []
    for kind, choices in sorted(rows.items()):
        turned = "yes" if all(turned for _, turned, _ in choices) else "not rotated"
        names = ", ".join(f"`{PREFIX}{name}`" for name, _, reason in choices if reason is None)
        reasons = " or ".join(sorted({reason.partition(" (")[0] for _, _, reason in choices if reason is not None}))
        lines.append(f"| {kind} | yes | {turned} | {names or f'no: it {reasons}'} |")
    return HEAD + "\n".join(lines)


def rooms() -> str:
    """The folders and modules of the package in the order of its layers, each with its first sentence."""
    project = tomllib.loads((CONFIGS.parent / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name for layer in layers for name in layer.split(" | ")]
    said = (inspect.getdoc(import_module(f"subquad.{name}")) or "" for name in names)
    lines = (
        f"| `{name}` | {text.partition('. ')[0].partition(chr(10))[0].rstrip('.')} |"
        for name, text in zip(names, said, strict=True)
    )
    return "\n".join(["| in `src/subquad/` | is |", "|---|---|", *lines])
