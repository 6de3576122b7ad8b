"""Which of several rows differ beyond chance: every pair, over seeds and test cases at once."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from subquad.results.differences import of_rows
from subquad.results.statistics import LEVEL, quantile, two_sided

Parts = Sequence[tuple[float, float]]
"""Variances, each with its degrees of freedom."""


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
    table, of_seeds = _table(values), _of_seeds(values)
    found = []
    for (i, a), (j, b) in itertools.combinations(enumerate(values), 2):
        parts = [of_seeds, *([] if cases is None else [_of_cases(cases[a] - cases[b])])]
        found.append(_pair(a, b, float(table[i].mean()), float(table[j].mean()), parts))
    return _corrected(found)


def share_pairs(values: Mapping[str, Mapping[int, float]], tested: int | None, unit: float = 1.0) -> list[Pair]:
    """Every pair of rows, where the single test cases of runs are not kept and rows may have different seeds.

    The variance of a difference is

        s_a² / n_a + s_b² / n_b + v(a) + v(b),

    where s² is a row's own variance over its seeds, because some mechanisms learn with some seeds only and others
    hardly vary; and v is the variance of a share of `tested` independent rows (`subquad.results.differences.of_rows`),
    as if the right answers of a and b had nothing in common. Degrees of freedom as in `all_pairs`, with n - 1 for each
    s² (Welch 1947) and infinitely many for v.

    values: by row and seed, at least two seeds each. tested: rows of the test split; None where the metric is no share
    of them. unit: 100 for values in %.
    """
    numbers = {row: list(of_row.values()) for row, of_row in values.items()}
    means = {row: statistics.fmean(of_row) for row, of_row in numbers.items()}
    parts: dict[str, Parts] = {r: [(statistics.variance(of) / len(of), len(of) - 1)] for r, of in numbers.items()}
    if tested is not None:
        parts = {row: [*of_row, of_rows(means[row], tested, unit)] for row, of_row in parts.items()}
    pairs = itertools.combinations(values, 2)
    return _corrected([_pair(a, b, means[a], means[b], [*parts[a], *parts[b]]) for a, b in pairs])


def _table(values: Mapping[str, Mapping[int, float]]) -> np.ndarray:
    """float64 [rows, seeds]."""
    seeds = sorted(next(iter(values.values())))
    return np.array([[of_row[seed] for seed in seeds] for of_row in values.values()])


def _of_seeds(values: Mapping[str, Mapping[int, float]]) -> tuple[float, float]:
    """2 s² / n of `all_pairs`, with its degrees of freedom."""
    table = _table(values)
    rest = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return 2 * float((rest**2).sum()) / freedom / table.shape[1], freedom


def _of_cases(cases: np.ndarray) -> tuple[float, float]:
    return float(np.var(cases, ddof=1)) / len(cases), len(cases) - 1


def _error(parts: Parts) -> tuple[float, float]:
    """The standard error from parts of its square, and its degrees of freedom (Satterthwaite 1946)."""
    variance, spent = sum(part for part, _ in parts), sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(variance), variance**2 / spent if spent else parts[0][1]


def half_widths(values: Mapping[str, Mapping[int, float]], cases: Mapping[str, np.ndarray] | None) -> dict[str, float]:
    """Half of the 95 % interval of each row's mean, with the two sources of chance of `all_pairs`.

    The variance of a mean is s² / n + var(c) / N, with s² the variance over seeds within rows, pooled, and c [N] the
    row's test cases; the degrees of freedom of s² are rows (n - 1).
    """
    table = np.array([list(of_row.values()) for of_row in values.values()])
    freedom = table.shape[0] * (table.shape[1] - 1)
    of_seeds = float(((table - table.mean(1, keepdims=True)) ** 2).sum()) / freedom / table.shape[1]
    seeds: Parts = ((of_seeds, freedom),)
    errors = {row: _error(seeds if cases is None else (*seeds, _of_cases(cases[row]))) for row in values}
    return {row: quantile(degrees) * error for row, (error, degrees) in errors.items()}


def _pair(a: str, b: str, of_a: float, of_b: float, parts: Parts) -> Pair:
    """The pair of two rows with these means."""
    difference, (error, degrees) = of_a - of_b, _error(parts)
    if error <= 1e-6 * max(abs(of_a), abs(of_b)):  # of single precision: no variation at all says nothing about chance
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
