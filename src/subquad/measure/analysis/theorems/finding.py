"""What a numeric check of a statement found."""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import subquad.measure.analysis.theorems

Verdict = Literal["holds", "fails", "misprinted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A statement of a paper, whether it holds on random numbers, and the numbers that say so.

    verdict: "holds" as printed; "misprinted", where it holds after the correction in `note`; "fails" otherwise.
    measured: names to values, errors first.
    """

    paper: str
    place: str
    statement: str
    verdict: Verdict
    measured: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def check_all(word: str = "") -> list[Finding]:
    """The findings of every file of this folder that has a `check` and whose name holds the word."""
    found: list[Finding] = []
    for module in pkgutil.iter_modules(subquad.measure.analysis.theorems.__path__):
        check = getattr(
            importlib.import_module(f"{subquad.measure.analysis.theorems.__name__}.{module.name}"), "check", None
        )
        if check is not None and word in module.name:
            found += check()
    return found
