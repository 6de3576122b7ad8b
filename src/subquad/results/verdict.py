"""Verdicts: the comparison of a measured cell with the printed one."""

import enum
from collections.abc import Mapping

from subquad.results.published_value import Direction, Printed
from subquad.results.statistics import Summary, summarise
from subquad.results.table import Cell


class Verdict(enum.Enum):
    """Every verdict, as the pages name them."""

    REPRODUCED = "reproduced"
    AS_PRINTED = "as printed"
    NOISE = "within noise"
    BETTER = "better"
    WORSE = "worse"
    MORE = "more"
    LESS = "less"
    INCOMPLETE = "too few seeds"
    OTHER_SCALE = "other scale or protocol"
    NOT_RUN = "not run"
    NEEDS_DATA = "needs data"
    NOT_PRINTED = "new"


def judge(measured: Summary, printed: Printed, seeds: int, better: Direction) -> Verdict:
    """Compares a mean over seeds with a printed value.

    reproduced: they differ by no more than the printed spread, or than the rounding of the printed value.
    within noise: their 95 % intervals overlap; the printed one is taken as two spreads to either side.
    better, worse: the mean is on that side of it, by `better`. more, less: the same for counted quantities, which have
    no better side. too few seeds: fewer than the table declares.
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
    if better == "equal":
        return Verdict.MORE if difference > 0 else Verdict.LESS
    return Verdict.BETTER if (difference > 0) == (better == "higher") else Verdict.WORSE


_STATED = frozenset({"setting", "energy_cost", "complexity"})
"""Functions of results/measures.py that read settings and constants."""


def is_stated(cell: Cell) -> bool:
    """Whether a value needs no experiment: a setting, a constant, or a model's cost over itself, which is 1."""
    reference = cell.measure.get("reference") or ()
    of_itself = bool(reference) and set(reference) <= set(cell.overrides)
    one = cell.printed is not None and cell.printed.value == 1
    return (one and of_itself) or str(cell.measure.get("_target_", "")).rpartition(".")[2] in _STATED


def cell_verdict(
    cell: Cell, values: Mapping[int, float], full: bool, needs_data: bool = False, stated: bool | None = None
) -> Verdict:
    """The verdict of a table's cell. A stated value that agrees is `as printed`, never reproduced.

    Args:
        cell: the cell.
        values: its measured values by seed.
        full: whether its runs are at the paper's scale and on real data.
        needs_data: whether its data are missing on this machine.
        stated: whether its value needs no experiment; None asks `is_stated`.
    """
    if not values:
        return Verdict.NEEDS_DATA if needs_data else Verdict.NOT_RUN
    if not full and (cell.of_run or not cell.measure):
        return Verdict.OTHER_SCALE
    seeds = cell.seeds if cell.trained or cell.mean else 1
    if cell.printed is None or cell.printed.value is None:
        return Verdict.NOT_PRINTED if len(values) >= seeds else Verdict.INCOMPLETE
    found = judge(summarise(values), cell.printed, seeds, cell.metric.better)
    settled = found is Verdict.REPRODUCED and (is_stated(cell) if stated is None else stated)
    return Verdict.AS_PRINTED if settled else found
