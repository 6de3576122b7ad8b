"""Runs that differ in their seed only, as one line: mean and standard deviation of the score, parameters, time."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from subquad.results.model import Run
from subquad.results.statistics import summarise
from subquad.utils.display import is_share

_NO_SETTINGS = {"seed", "task", "attention", "scale", "protocol", "data", "trainer", "logger", "tags", "evaluate"}
"""Overrides that do not matter or have a column of their own."""
_NO_SECTIONS = ("paths.", "logger.", "sweep.")


@dataclass(frozen=True, slots=True)
class Repeats:
    """The runs of one configuration on the same data.

    settings: the overrides that other lines of the task lack. Lines that have no other difference, such as those of a
    class whose code has changed, are told apart by their fingerprints.
    """

    runs: tuple[Run, ...]
    settings: str

    @property
    def metric(self) -> str:
        """The metric of the score, on the test split."""
        return f"test/{self.runs[0].monitor}"

    @property
    def score(self) -> str:
        """Mean ± standard deviation over the seeds; accuracies in percent. A dash if no run has a finite value."""
        found = {run.record.seed: run.record.metrics.get(self.metric, math.nan) for run in self.runs}
        values = {seed: value for seed, value in found.items() if math.isfinite(value)}
        if not values:
            return "—"
        if is_share(self.metric):
            return f"{summarise({seed: 100 * value for seed, value in values.items()}).text(2)} %"
        summary = summarise(values)
        return f"{summary.mean:.4g}" + ("" if summary.std is None else f" ± {summary.std:.2g}")

    @property
    def seconds(self) -> float:
        """Mean time of a run."""
        return statistics.fmean(run.record.wall_seconds for run in self.runs)


def repeats(runs: Iterable[Run]) -> list[Repeats]:
    """Groups runs by configuration and data; the groups of a task stand together, each with its seeds in order."""
    groups: dict[tuple[str, str, str], dict[int, Run]] = {}
    for run in runs:
        record = run.record
        groups.setdefault((record.task, record.fingerprint, record.data_fingerprint), {})[record.seed] = run
    shared: dict[str, set[str]] = {}
    for (task, *_), found in groups.items():
        own = set(_settings(next(iter(found.values()))))
        shared[task] = shared.get(task, own) & own
    lines = [
        Repeats(
            tuple(found[seed] for seed in sorted(found)),
            " ".join(text for text in _settings(next(iter(found.values()))) if text not in shared[task]),
        )
        for (task, *_), found in sorted(groups.items(), key=lambda item: item[0][0])
    ]
    alike = Counter(map(_shown, lines))
    return [_told_apart(line) if alike[_shown(line)] > 1 else line for line in lines]


def _told_apart(line: Repeats) -> Repeats:
    return replace(line, settings=f"{line.settings} fingerprint {line.runs[0].record.fingerprint}".lstrip())


def _shown(line: Repeats) -> tuple[Any, ...]:
    first = line.runs[0]
    return first.record.task, first.record.attention, first.scope, line.settings


def _settings(run: Run) -> list[str]:
    """The overrides of a run, without those of `_NO_SETTINGS`."""
    keys = {text: text.lstrip("+~").partition("=")[0] for text in run.record.overrides}
    return [text for text, key in keys.items() if key not in _NO_SETTINGS and not key.startswith(_NO_SECTIONS)]
