"""The result of a numerical check of a statement."""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import subquad.measure.analysis.theorems

Verdict = Literal["holds", "fails", "misprinted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A statement of a paper, whether it holds on random numbers, and the measured numbers.

    verdict: "holds" as printed; "misprinted" if it holds after the correction in `note`; "fails" otherwise.
    measured: names to values, errors first.
    """

    paper: str
    place: str
    statement: str
    verdict: Verdict
    measured: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def check_all(topic: str = "") -> list[Finding]:
    """The findings of every file of this folder that has a `check` and whose name contains the topic."""
    findings: list[Finding] = []
    for module in pkgutil.iter_modules(subquad.measure.analysis.theorems.__path__):
        check = getattr(
            importlib.import_module(f"{subquad.measure.analysis.theorems.__name__}.{module.name}"), "check", None
        )
        if check is not None and topic in module.name:
            findings += check()
    return findings
