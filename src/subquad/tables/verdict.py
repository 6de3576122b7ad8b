"""What may be said of a measured cell beside a printed one."""

import enum
from typing import Literal

from subquad.tables.printed import Printed
from subquad.tables.statistics import Summary

Direction = Literal["higher", "lower", "equal"]
"""Which way a metric is better; "equal" for quantities that are counted and have no better side."""


class Verdict(enum.Enum):
    """The eight answers, in the words of the page."""

    REPRODUCED = "reproduced"
    NOISE = "within noise"
    ABOVE = "above"
    BELOW = "below"
    INCOMPLETE = "too few seeds"
    OTHER_SCALE = "measured at another scale"
    NOT_RUN = "not run"
    NEEDS_DATA = "needs data"
    NOT_PRINTED = "new"


def judge(measured: Summary, printed: Printed, seeds: int, better: Direction) -> Verdict:
    """Compares a mean over seeds with a printed value.

    reproduced: they differ by no more than the printed spread, or than the rounding of the printed value.
    within noise: their 95 % intervals overlap; the printed one is taken as two spreads to either side.
    above, below: the mean is better or worse than that. too few seeds: fewer than the table declares.
    `better` turns the difference round for metrics such as RMSE, so that above always means better; for counted
    quantities above means more.
    """
    if printed.value is None:
        raise ValueError(f"{printed.text!r} is no number to compare with.")
    if measured.seeds < seeds:
        return Verdict.INCOMPLETE
    difference = measured.mean - printed.value
    spread = printed.spread or 0.0
    if abs(difference) <= max(spread, printed.rounding) * (1 + 1e-9):
        return Verdict.REPRODUCED
    if abs(difference) <= (measured.half_width or 0.0) + max(2 * spread, printed.rounding):
        return Verdict.NOISE
    return Verdict.ABOVE if (difference > 0) != (better == "lower") else Verdict.BELOW
