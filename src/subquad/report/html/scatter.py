"""Two columns of a table against each other: accuracy against speed, one point a row."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from subquad.report.html.chart import Axis, axis
from subquad.results.model import CellResults, Scope, TableResults

LEFT, RIGHT, TOP, BOTTOM, WIDTH = 56, 580, 12, 316, 760
"""Names of the points and of the levels need the room to the right."""
LETTER, ABOVE, BELOW, DOT = 6.2, 9, 3, 4.5
"""The size of a name about its baseline, and the radius of a point."""

Box = tuple[float, float, float, float]
"""Left, right, top and bottom."""


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
class Label:
    """Where the name of a point stands; `side` is the end of the text that is fixed there: start or end."""

    x: float
    y: float
    side: str
    is_shown: bool


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
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class Scatter:
    """One column against another in one scope, with the baseline scores of the upper one that are near its means."""

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
    # A score without a model that is far from all means would press them together; the table names it too.
    reach = max(means) - min(means)
    near = {name: score for name, score in baselines.items() if min(means) - reach <= score <= max(means) + reach}
    up_axis = axis([*means, *near.values()], BOTTOM, TOP)
    for (cell, value, mean), ends in zip(rows, intervals, strict=True):
        low, high = (up_axis.at(min(max(end, up_axis.low), up_axis.high)) for end in ends)
        result = cell.within(scope)
        assert result is not None
        text = f"{cell.cell.row}: {y} {result.text}, {x} {value:.3g}"
        points.append(Point(cell.cell.row, cell.anchor, along.at(value), up_axis.at(mean), low, high, text))
    label = part.cells[rows[0][0].cell.row, x].cell.metric.label
    levels = [(name, up_axis.at(score)) for name, score in near.items()]
    return Scatter(f"{y} against {x} ({label})", scope, along, up_axis, _labelled(points, levels), levels)


def _labelled(points: Sequence[Point], levels: Sequence[tuple[str, float]]) -> list[Point]:
    """The points with their names, each where it covers no other; where there is no room, it is shown on request."""
    taken = [(p.x - DOT, p.x + DOT, p.y - DOT, p.y + DOT) for p in points]
    taken += [(RIGHT, WIDTH, y - ABOVE / 2, y + ABOVE / 2) for _, y in levels]
    labelled: list[Point] = []
    for point in points:
        places = list(_places(point))
        free = [place for place in places if _is_inside(place[1]) and not any(_meet(place[1], box) for box in taken)]
        label, box = free[0] if free else (replace(places[0][0], is_shown=False), None)
        if box is not None:
            taken.append(box)
        labelled.append(replace(point, label=label))
    return labelled


def _places(point: Point) -> Iterator[tuple[Label, Box]]:
    """Where a name may stand with the room that it takes: beside the point, then above and below it."""
    width = LETTER * len(point.name)
    for dx, dy in ((7, 4), (-7, 4), (3, -8), (3, 15), (-3, -8), (-3, 15)):
        x, y = point.x + dx, point.y + dy
        left = x if dx > 0 else x - width
        yield Label(x, y, "start" if dx > 0 else "end", True), (left, left + width, y - ABOVE, y + BELOW)


def _is_inside(box: Box) -> bool:
    return box[0] >= LEFT and box[1] <= WIDTH and box[2] >= 0 and box[3] <= BOTTOM


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def _both(part: TableResults, row: str, x: str, y: str, scope: Scope) -> list[tuple[CellResults, float, float]]:
    """The upper cell of a row with its values of both columns; empty if one is missing or not positive."""
    cells = [part.cells.get((row, column)) for column in (x, y)]
    found = [None if cell is None else cell.within(scope) for cell in cells]
    if cells[1] is None or any(result is None or result.summary is None for result in found):
        return []
    across, up = (result.summary.mean for result in found if result is not None and result.summary is not None)
    return [(cells[1], across, up)] if across > 0 and math.isfinite(across + up) else []
