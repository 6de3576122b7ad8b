"""What a few seeds tell: mean, spread, interval, and whether one setting beats another."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

LEVEL = 0.95
"""Confidence of every interval."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One quantity over seeds. `std` (n - 1 in the denominator) and `half_width` are None for a single seed."""

    mean: float
    std: float | None
    half_width: float | None
    seeds: int


def summarise(values: Mapping[int, float]) -> Summary:
    """Mean, standard deviation and the half width of Student's 95 % interval of the mean; `values` by seed."""
    numbers = list(values.values())
    mean, count = statistics.fmean(numbers), len(numbers)
    if count < 2:
        return Summary(mean, None, None, count)
    std = statistics.stdev(numbers)
    return Summary(mean, std, _quantile(count - 1) * std / math.sqrt(count), count)


@dataclass(frozen=True, slots=True)
class Comparison:
    """a - b over the seeds that both have. `low` and `high` bound the mean difference with 95 % confidence."""

    difference: float
    low: float
    high: float
    seeds: int

    @property
    def beats(self) -> bool:
        """Whether a is above b beyond what the seeds explain."""
        return self.low > 0

    @property
    def loses(self) -> bool:
        """Whether a is below b beyond what the seeds explain."""
        return self.high < 0


def compare(a: Mapping[int, float], b: Mapping[int, float]) -> Comparison | None:
    """Paired comparison: seed by seed, so that what a seed does to both cancels. None below two common seeds."""
    common = sorted(a.keys() & b.keys())
    if len(common) < 2:
        return None
    summary = summarise({seed: a[seed] - b[seed] for seed in common})
    assert summary.half_width is not None
    return Comparison(
        summary.mean, summary.mean - summary.half_width, summary.mean + summary.half_width, len(common)
    )  # fmt: skip


def _quantile(freedom: int) -> float:
    """Of Student's t, two-sided."""
    from scipy import stats

    return float(stats.t.ppf(0.5 + LEVEL / 2, freedom))
