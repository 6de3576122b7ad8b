"""The mechanism that overrides of train.py train, and what the configuration files say of it.

A mechanism is the module of a class, such as `performer`; its choices of `attention=` or `backbone=` are the files that
build a class of that module (performer, performer_relu). Files are read and nothing is composed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from subquad.config.choices import file_of, options
from subquad.config.task_metadata import chosen, opening_comment

NO_ATTENTION = "no_attention"
"""The mechanism of a model whose attention is left out (backbone.attention=null)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One file of configs/attention or configs/backbone.

    mechanism: the module of its class. text: its opening comment. settings: key, default, and the comment beside it,
    with those that it inherits.
    """

    group: str
    name: str
    mechanism: str
    text: str
    settings: tuple[tuple[str, str, str], ...]


@cache
def mechanism_of(overrides: tuple[str, ...]) -> str:
    """The mechanism that overrides choose by attention=, backbone= or experiment=; empty where none does."""
    found = chosen(overrides)
    if found.get("backbone.attention") == "null":
        return NO_ATTENTION
    given = (choice_of(group, found.get(group, "")) for group in ("backbone", "attention"))
    return next((choice.mechanism for choice in given if choice is not None), "")


@cache
def mechanisms() -> dict[str, list[Choice]]:
    """All choices by their mechanism, the one that is named like it first."""
    by_mechanism: dict[str, list[Choice]] = {}
    for group in ("attention", "backbone"):
        for name in options(group):
            if (choice := choice_of(group, name)) is not None:
                by_mechanism.setdefault(choice.mechanism, []).append(choice)
    return {key: sorted(found, key=lambda c: c.name != key) for key, found in sorted(by_mechanism.items())}


@cache
def choice_of(group: str, name: str) -> Choice | None:
    """A choice of `attention=`, or of `backbone=` that takes no attention; None for any other."""
    path = file_of(group, name) if name else None
    if path is None:
        return None
    texts = list(_chain(group, path))
    whole = "\n".join(texts)
    target = re.search(r"^_target_: *([\w.]+)", whole, re.MULTILINE)
    if target is None or (group == "backbone" and re.search(r"\$\{attention\b", whole)):
        return None
    mechanism = target[1].rpartition(".")[0].rpartition(".")[2]
    settings: dict[str, tuple[str, str]] = {}
    for text in reversed(texts):
        for key, value, comment in re.findall(r"^([a-z]\w*): *([^#\n]*?) *(?:# *(.*))?$", text, re.MULTILINE):
            if key != "defaults":
                settings[key] = (value, comment or settings.get(key, ("", ""))[1])
    named = tuple((key, value, comment) for key, (value, comment) in settings.items())
    return Choice(group, name, mechanism, " ".join(opening_comment(path)), named)


def _chain(group: str, path: Path) -> Iterator[str]:
    """The texts of a file and of those that it inherits, the last of which is the most general."""
    text = path.read_text(encoding="utf-8")
    yield text
    parents: list[str] = re.findall(r"^  - (\w+)$", text.partition("defaults:")[2].partition("\n\n")[0], re.MULTILINE)
    for parent in parents:
        if parent != "_self_" and (inherited := file_of(group, parent)) is not None:
            yield from _chain(group, inherited)
