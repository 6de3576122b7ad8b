"""Statistics over few seeds: mean, spread, interval, and whether one setting beats another."""

import math
import statistics
from collections.abc import Mapping, Sequence
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

    def text(self, digits: int) -> str:
        """Mean ± standard deviation with so many decimal places; the mean alone for a single seed."""
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def summarise(values: Mapping[int, float]) -> Summary:
    """Mean, standard deviation and the half width of Student's 95 % interval of the mean; `values` by seed."""
    numbers = list(values.values())
    mean, count = statistics.fmean(numbers), len(numbers)
    if count < 2:
        return Summary(mean, None, None, count)
    std = statistics.stdev(numbers)
    return Summary(mean, std, quantile(count - 1) * std / math.sqrt(count), count)


@dataclass(frozen=True, slots=True)
class Comparison:
    """a - b over the seeds that both have. `low` and `high` bound the mean difference with 95 % confidence.

    p: of Student's paired test, two-sided. Where all differences are the same, the variation over seeds is unknown, and
    p is that of the sign test, which three seeds cannot bring below 0.05; 1 where all are 0.
    """

    difference: float
    low: float
    high: float
    seeds: int
    p: float

    @property
    def beats(self) -> bool:
        """Whether a is above b beyond the variation over seeds."""
        return self.p < 1 - LEVEL and self.difference > 0

    @property
    def loses(self) -> bool:
        """Whether a is below b beyond the variation over seeds."""
        return self.p < 1 - LEVEL and self.difference < 0


def compare(a: Mapping[int, float], b: Mapping[int, float]) -> Comparison | None:
    """Paired comparison, seed by seed, so that effects of a seed on both cancel. None below two common seeds."""
    common = sorted(a.keys() & b.keys())
    if len(common) < 2:
        return None
    summary = summarise({seed: a[seed] - b[seed] for seed in common})
    precision = 1e-6 * max(abs(value[seed]) for value in (a, b) for seed in common)  # of single precision
    assert summary.half_width is not None
    low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
    return Comparison(summary.mean, low, high, len(common), _p(summary, precision))


@dataclass(frozen=True, slots=True)
class Across:
    """a - b over settings, such as data sets, that count once each, whatever their seeds.

    `low` and `high` bound the mean difference with 95 % confidence, by Student; None for a single setting. p: of
    Wilcoxon's signed-rank test, two-sided, without the settings where both are equal (Demsar 2006); 1 where all are.
    ranks: the statistic of the test, the sum of the signed ranks of the differences by size.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    ranks: float
    better: int
    equal: int
    settings: int

    @property
    def beats(self) -> bool:
        """Whether a is significantly ahead of b."""
        return self.p < 1 - LEVEL and self.ranks > 0

    @property
    def loses(self) -> bool:
        """Whether b is significantly ahead of a."""
        return self.p < 1 - LEVEL and self.ranks < 0


def across(differences: Sequence[float]) -> Across | None:
    """Statistics of differences of means, one for each setting; None if there are none."""
    if not differences:
        return None
    from scipy import stats

    summary = summarise(dict(enumerate(differences)))
    signed = [kept for kept in (round(difference, 9) for difference in differences) if kept]
    sizes = stats.rankdata([abs(difference) for difference in signed])
    half = summary.half_width
    return Across(
        summary.mean,
        None if half is None else summary.mean - half,
        None if half is None else summary.mean + half,
        float(stats.wilcoxon(signed).pvalue) if signed else 1.0,
        sum(math.copysign(rank, value) for rank, value in zip(sizes, signed, strict=True)),
        sum(difference > 0 for difference in signed),
        len(differences) - len(signed),
        len(differences),
    )


def _p(differences: Summary, precision: float) -> float:
    """The probability of a mean at least so far from 0 if differences are centred at 0; see `Comparison`."""
    assert differences.std is not None
    if differences.std <= precision:
        return 2.0 ** (1 - differences.seeds) if abs(differences.mean) > precision else 1.0
    t = differences.mean / (differences.std / math.sqrt(differences.seeds))
    return two_sided(t, differences.seeds - 1)


def two_sided(t: float, freedom: float) -> float:
    """The probability of a value of Student's t at least so far from 0."""
    from scipy.special import stdtr  # scipy.stats takes a second to import

    return float(2 * stdtr(freedom, -abs(t)))


def quantile(freedom: float) -> float:
    """The two-sided quantile of Student's t at LEVEL."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))
