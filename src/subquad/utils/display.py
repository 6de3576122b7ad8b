"""Durations, counts and commands as they are shown to the user."""

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
CHECKOUT = _ROOT if (_ROOT / "train.py").is_file() else None
"""The repository that this package is imported from; None for an installed package."""


def duration(seconds: float, digits: int = 1) -> str:
    """Hours and minutes, minutes and seconds, or seconds with `digits` decimals."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.{digits}f} s"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def three_digits(value: float) -> str:
    """A cost, with three digits or all before the point: 0.0123, 1,860."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def metric_text(metric: str, value: float) -> str:
    """The value of a metric: an accuracy as a percentage, any other with four digits."""
    return f"{value:.2%}" if is_share(metric) else f"{value:.4g}"


def is_share(metric: str) -> bool:
    """Whether a metric is shown as a percentage: test/accuracy, test/top5_accuracy, test/accuracy_number."""
    return "accuracy" in metric


def sizes(rows: Mapping[str, int]) -> str:
    """The number of rows of each split: train 150, val 850, test 850."""
    return ", ".join(f"{split} {rows[split]:,}" for split in ("train", "val", "test") if split in rows)


def from_here(path: Path) -> Path:
    """The path from the current folder, if it is below it; else as it is."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def in_checkout() -> bool:
    """Whether the current folder is the repository that this package is imported from."""
    return CHECKOUT is not None and Path.cwd() == CHECKOUT


def as_typed(text: str) -> str:
    """Replaces the commands of a checkout (`python train.py`) by those of an installed package (`subquad train`).

    In the checkout itself, where they work, the text is returned unchanged.
    """
    if in_checkout():
        return text
    return re.sub(r"(?:python )?scripts/(\w+)\.py|python (train|eval)\.py", lambda m: f"subquad {m[1] or m[2]}", text)


def command_line(program: str, overrides: Iterable[Any]) -> str:
    """The program with its overrides, quoted where a shell would take them apart."""
    return " ".join([as_typed(program), *(shlex.quote(str(override)) for override in overrides)])
