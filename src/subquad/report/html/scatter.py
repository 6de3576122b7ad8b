"""Two columns of a table against each other: accuracy against speed, one point a row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subquad.report.html.chart import Axis, axis
from subquad.results.model import CellResults, Scope, TableResults

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 520, 12, 316
"""Names of the points need the room to the right."""


@dataclass(frozen=True, slots=True)
class LogAxis(Axis):
    """Positive values on a logarithmic scale; `low` and `high` are logarithms to base 10."""

    def at(self, value: float) -> float:
        """Where a value is drawn, to a tenth of a unit."""
        return Axis(self.low, self.high, self.start, self.stop).at(math.log10(value))

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and texts of 1, 2 and 5 times powers of ten inside."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        values = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [(self.at(v), f"{v:g}") for v in values if self.low <= math.log10(v) <= self.high]


@dataclass(frozen=True, slots=True)
class Point:
    """One row: its place, the ends of the interval of the mean, and a text for readers who point at it."""

    name: str
    anchor: str
    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """One column against another in one scope, with the baseline scores of the upper one."""

    title: str
    scope: Scope
    across: Axis
    up: Axis
    points: Sequence[Point]
    levels: Sequence[tuple[str, float]]


def scatters(part: TableResults) -> list[Scatter]:
    """The charts that a table declares, in each scope in which at least two rows have both values."""
    drawn = [_scatter(part, x, y, scope) for x, y in part.table.charts for scope in part.scopes]
    return [scatter for scatter in drawn if scatter is not None]


def _scatter(part: TableResults, x: str, y: str, scope: Scope) -> Scatter | None:
    rows = [(cell, across, up) for row in part.table.rows for cell, across, up in _both(part, row.name, x, y, scope)]
    if len(rows) < 2:
        return None
    across = [value for _, value, _ in rows]
    logs = axis([math.log10(value) for value in across], LEFT, RIGHT)
    along = LogAxis(logs.low, logs.high, LEFT, RIGHT)
    baselines: Mapping[str, float] = {}
    intervals, points = [], []
    for cell, _, _ in rows:
        result = cell.within(scope)
        assert result is not None
        assert result.summary is not None
        baselines = result.baselines or baselines
        half = result.summary.half_width or 0.0
        intervals.append((result.summary.mean - half, result.summary.mean + half))
    # An interval of few seeds may be far wider than all means: it ends at the edge.
    means = [up for _, _, up in rows]
    up_axis = axis([*means, *baselines.values()], BOTTOM, TOP)
    for (cell, value, mean), ends in zip(rows, intervals, strict=True):
        low, high = (up_axis.at(min(max(end, up_axis.low), up_axis.high)) for end in ends)
        result = cell.within(scope)
        assert result is not None
        text = f"{cell.cell.row}: {y} {result.text}, {x} {value:.3g}"
        points.append(Point(cell.cell.row, cell.anchor, along.at(value), up_axis.at(mean), low, high, text))
    label = part.cells[rows[0][0].cell.row, x].cell.metric.label
    levels = [(name, up_axis.at(score)) for name, score in baselines.items()]
    return Scatter(f"{y} against {x} ({label})", scope, along, up_axis, points, levels)


def _both(part: TableResults, row: str, x: str, y: str, scope: Scope) -> list[tuple[CellResults, float, float]]:
    """The upper cell of a row with its values of both columns; empty if one is missing or not positive."""
    cells = [part.cells.get((row, column)) for column in (x, y)]
    found = [None if cell is None else cell.within(scope) for cell in cells]
    if cells[1] is None or any(result is None or result.summary is None for result in found):
        return []
    across, up = (result.summary.mean for result in found if result is not None and result.summary is not None)
    return [(cells[1], across, up)] if across > 0 and math.isfinite(across + up) else []
