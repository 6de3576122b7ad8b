"""Which of several rows differ beyond chance: every pair, over seeds and test cases at once."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from subquad.results.statistics import LEVEL, quantile, two_sided


@dataclass(frozen=True, slots=True)
class Pair:
    """a - b in the unit of the metric, with its 95 % interval, its p, and p corrected for all pairs by Holm (1979)."""

    a: str
    b: str
    difference: float
    low: float
    high: float
    p: float
    corrected: float = 1.0

    @property
    def differs(self) -> bool:
        """Whether the difference is beyond chance."""
        return self.corrected < 1 - LEVEL


def all_pairs(values: Mapping[str, Mapping[int, float]], cases: Mapping[str, np.ndarray] | None) -> list[Pair]:
    """Every pair of rows, the first named first.

    The variance of a difference D of means over n seeds and N test cases is

        2 s² / n + var(d) / N,

    where s² is the variance over seeds that is left when each row and each seed may have its own mean, pooled over all
    rows, because few seeds say little about one row; and d [N] are the differences of the two rows in each test case,
    averaged over seeds. D over its standard deviation is compared with Student's t, whose degrees of freedom are those
    of Satterthwaite for a sum of two variances with (rows - 1)(n - 1) and N - 1. For two rows and no `cases` this is
    Student's paired test.

    values: by row and seed; every row has the same seeds, at least two. cases: by row float [N], what each test case
    adds to the metric, so that the differences of their means are those of the metric; None if they are unknown.
    """
    rows, seeds = list(values), sorted(next(iter(values.values())))
    table = np.array([[values[row][seed] for seed in seeds] for row in rows])
    rest = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    freedom = (len(rows) - 1) * (len(seeds) - 1)
    of_seeds = 2 * float((rest**2).sum()) / freedom / len(seeds)
    found = []
    for a, b in itertools.combinations(range(len(rows)), 2):
        known = None if cases is None else cases[rows[a]] - cases[rows[b]]
        difference, (error, degrees) = float(table[a].mean() - table[b].mean()), _error(of_seeds, freedom, known)
        found.append(_pair(rows[a], rows[b], difference, error, degrees))
    return _corrected(found)


def _error(of_seeds: float, freedom: int, cases: np.ndarray | None) -> tuple[float, float]:
    """The standard error of a mean over seeds and cases, and its degrees of freedom (Satterthwaite 1946)."""
    of_cases = 0.0 if cases is None else float(np.var(cases, ddof=1)) / len(cases)
    if cases is None or not of_seeds + of_cases:
        return math.sqrt(of_seeds), freedom
    degrees = (of_seeds + of_cases) ** 2 / (of_seeds**2 / freedom + of_cases**2 / (len(cases) - 1))
    return math.sqrt(of_seeds + of_cases), degrees


def half_widths(values: Mapping[str, Mapping[int, float]], cases: Mapping[str, np.ndarray] | None) -> dict[str, float]:
    """Half of the 95 % interval of each row's mean, with the two sources of chance of `all_pairs`.

    The variance of a mean is s² / n + var(c) / N, with s² the variance over seeds within rows, pooled, and c [N] the
    row's test cases; the degrees of freedom of s² are rows (n - 1).
    """
    table = np.array([list(of_row.values()) for of_row in values.values()])
    freedom = table.shape[0] * (table.shape[1] - 1)
    of_seeds = float(((table - table.mean(1, keepdims=True)) ** 2).sum()) / freedom / table.shape[1]
    errors = {row: _error(of_seeds, freedom, None if cases is None else cases[row]) for row in values}
    return {row: quantile(degrees) * error for row, (error, degrees) in errors.items()}


def _pair(a: str, b: str, difference: float, error: float, degrees: float) -> Pair:
    precision = 1e-6 * max(1.0, abs(difference))
    if error <= precision:  # no variation at all says nothing about chance
        return Pair(a, b, difference, difference, difference, 1.0)
    half = quantile(degrees) * error
    return Pair(a, b, difference, difference - half, difference + half, two_sided(difference / error, degrees))


def _corrected(pairs: Sequence[Pair]) -> list[Pair]:
    """Holm's step-down correction: the k-th smallest p of m is multiplied by m - k + 1, none is below an earlier."""
    corrected, largest = {}, 0.0
    for place, index in enumerate(sorted(range(len(pairs)), key=lambda i: pairs[i].p)):
        largest = max(largest, min(1.0, (len(pairs) - place) * pairs[index].p))
        corrected[index] = largest
    return [replace(pair, corrected=corrected[index]) for index, pair in enumerate(pairs)]


def case_scores(store: Any, overrides: Sequence[str], seeds: Sequence[int]) -> np.ndarray | None:
    """float64 [N]: what each test case adds to the metric of finished runs, averaged over seeds.

    Right or wrong for classes. For numbers e² / (2 r) with the squared error e² and the RMSE r, by which r changes to
    first order. None for tasks with another target than one of a case.

    store: a `subquad.results.run_store.RunStore`.
    """
    import torch

    found = []
    for seed in seeds:
        network, data, parts = store.network(overrides, seed), store.data(overrides, seed), []
        with torch.inference_mode():
            for batch in data.test_dataloader():
                target = getattr(batch, "target", None)
                if target is None or target.ndim != 1 or network is None:
                    return None
                outputs = network(*batch.network_inputs)
                if data.spec.classes is None:
                    parts.append((outputs.squeeze(-1) - target).double() ** 2)
                else:
                    parts.append((outputs.argmax(-1) == target).double())
        scores = torch.cat(parts).numpy()
        found.append(scores if data.spec.classes is not None else scores / (2 * math.sqrt(scores.mean()) or 1.0))
    return np.mean(found, axis=0)


def order(values: Mapping[str, Mapping[int, float]], lower_is_better: bool) -> list[str]:
    """The rows by their means, the best first."""
    return sorted(values, key=lambda row: statistics.fmean(values[row].values()) * (1 if lower_is_better else -1))
