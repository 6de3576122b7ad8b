"""Which of several rows differ beyond chance: every pair, over seeds and test cases at once."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from subquad.results.differences import Parts, error_of, half_width, of_rows
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

        var(D_s) / n + var(d) / N,

    where D_s are the differences of the two rows with each seed, and d [N] those in each test case, averaged over
    seeds. No variance is shared among pairs, because a mechanism that learns with some seeds only may stand beside
    others that hardly vary. D over its standard deviation is compared with Student's t, whose degrees of freedom are
    those of Satterthwaite for a sum of two variances with n - 1 and N - 1. Without `cases` this is Student's paired
    test.

    values: by row and seed; every row has the same seeds, at least two. cases: by row float [N], what each test case
    adds to the metric, so that the differences of their means are those of the metric; None if they are unknown.
    """
    rows = {row: np.array([of_row[seed] for seed in sorted(of_row)]) for row, of_row in values.items()}
    found = []
    for a, b in itertools.combinations(rows, 2):
        parts = [_of_mean(rows[a] - rows[b]), *([] if cases is None else [_of_mean(cases[a] - cases[b])])]
        found.append(_pair(a, b, float(rows[a].mean()), float(rows[b].mean()), parts))
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


def _of_mean(sample: np.ndarray) -> tuple[float, float]:
    """The variance of the mean of a sample, and its degrees of freedom."""
    return float(np.var(sample, ddof=1)) / len(sample), len(sample) - 1


def half_widths(values: Mapping[str, Mapping[int, float]], cases: Mapping[str, np.ndarray] | None) -> dict[str, float]:
    """Half of the 95 % interval of each row's mean, with the two sources of chance of `all_pairs`."""
    widths = {}
    for row, of_row in values.items():
        samples = [np.array([*of_row.values()]), *([] if cases is None else [cases[row]])]
        widths[row] = half_width([_of_mean(sample) for sample in samples])
    return widths


def _pair(a: str, b: str, of_a: float, of_b: float, parts: Parts) -> Pair:
    """The pair of two rows with these means."""
    difference, (error, degrees) = of_a - of_b, error_of(parts)
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
