"""Charts as numbers of an SVG that a template draws in the colours of the page, light or dark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subquad.results.model import CellResults, Run, Scope

WIDTH, LINE, LEFT = 640, 22, 200
POINTS = 160
"""A curve is drawn with at most so many points."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high`, drawn from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        """Where a value is drawn, to a tenth of a unit."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.stop - self.start), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and texts of round values inside."""
        step = _step((self.high - self.low) / 4)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        values = [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [(self.at(value), f"{value:,.{digits}f}") for value in values]


def axis(values: Sequence[float], start: float, stop: float) -> Axis:
    """An axis that holds all values, with a little room."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - room, high + room, start, stop)


def _step(size: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= size * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class Dot:
    """One line of a comparison: ours with its interval and printed with its spread; places along the axis."""

    name: str
    anchor: str
    colour: str
    y: float
    ours: float
    low: float
    high: float
    printed: float | None
    printed_low: float
    printed_high: float
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours beside printed for the cells of one metric in one scope."""

    title: str
    scope: Scope
    axis: Axis
    dots: Sequence[Dot]

    @property
    def height(self) -> float:
        """Of the drawing."""
        return LINE * len(self.dots) + 34


def comparisons(parts: Sequence[CellResults], colours: Mapping[object, str]) -> list[Comparison]:
    """One for each metric and scope with numbers, at most 60 cells each; none for metrics without a better side."""
    groups: dict[tuple[str, Scope], list[tuple[CellResults, int]]] = {}
    for part in parts:
        for i, value in enumerate(part.results):
            if value.summary is not None and part.cell.metric.better != "equal" and math.isfinite(value.summary.mean):
                label = " ".join(filter(None, (part.cell.metric.label or part.cell.metric.name, part.cell.metric.unit)))
                groups.setdefault((label, value.scope), []).append((part, i))
    return [_comparison(label, scope, group[:60], colours) for (label, scope), group in groups.items()]


def _comparison(
    label: str, scope: Scope, group: Sequence[tuple[CellResults, int]], colours: Mapping[object, str]
) -> Comparison:
    rows, reach = [], []
    for part, i in group:
        value, printed = part.results[i], part.cell.printed
        assert value.summary is not None
        mean, half = value.summary.mean, value.summary.half_width or 0.0
        number = None if printed is None else printed.value
        spread = 0.0 if printed is None else printed.spread or 0.0
        rows.append((part, value, mean, half, number, spread))
        reach += [mean, *([] if number is None else [number - spread, number + spread])]
    span = max(reach) - min(reach)
    reach += [e for _, _, mean, half, _, _ in rows for e in (mean - half, mean + half) if half <= max(span, 1e-9)]
    along = axis(reach, LEFT, WIDTH - 16)

    def held(value: float) -> float:
        return along.at(min(max(value, along.low), along.high))

    dots = [
        Dot(
            f"{part.cell.row} / {part.cell.column}", part.anchor, colours[value.verdict], 14 + LINE * k, held(mean),
            held(mean - half), held(mean + half), None if number is None else held(number),
            held((number or 0.0) - spread), held((number or 0.0) + spread),
            f"{part.cell.row} / {part.cell.column}: ours {value.text}, printed "
            f"{part.cell.printed.text if part.cell.printed else 'nothing'}, {value.verdict.value}",
        )
        for k, (part, value, mean, half, number, spread) in enumerate(rows)
    ]  # fmt: skip
    return Comparison(label, scope, along, dots)


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines over optimiser steps; `lines` are name and points of a polyline."""

    title: str
    across: Axis
    up: Axis
    lines: Sequence[tuple[str, str]]
    levels: Sequence[tuple[str, float]]


def run_curves(run: Run) -> list[Curves]:
    """Losses, and the metric that picks the best epoch with its score on the test split and the baseline scores."""
    losses = {name: _points(run, name) for name in ("train/loss", "val/loss")}
    metric = {f"val/{run.monitor}": _points(run, f"val/{run.monitor}")}
    levels = [(f"test/{run.monitor}", score) for score in [run.record.metrics.get(f"test/{run.monitor}")] if score]
    levels += list(run.record.baselines.items())
    drawn = [_curves("loss", losses, []), _curves(run.monitor, metric, levels) if run.monitor != "loss" else None]
    return [curves for curves in drawn if curves is not None]


def cell_curves(runs: Sequence[Run]) -> Curves | None:
    """The validation metric of a cell's runs, seed by seed."""
    if not runs or any(run.monitor != runs[0].monitor for run in runs):
        return None
    name = f"val/{runs[0].monitor}"
    return _curves(name, {f"seed {run.record.seed}": _points(run, name) for run in runs}, [])


def _points(run: Run, name: str) -> list[tuple[int, float]]:
    points = [(step, row[name]) for step, row in sorted(run.history.items()) if name in row]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    stride = max(1, math.ceil(len(points) / POINTS))
    return [*points[:-1:stride], *points[-1:]]


def _curves(
    title: str, series: Mapping[str, Sequence[tuple[int, float]]], levels: Sequence[tuple[str, float]]
) -> Curves | None:
    drawn = {name: points for name, points in series.items() if len(points) > 1}
    if not drawn:
        return None
    steps = [step for points in drawn.values() for step, _ in points]
    levels = [(name, value) for name, value in levels if math.isfinite(value)]
    values = [value for points in drawn.values() for _, value in points] + [value for _, value in levels]
    across, up = Axis(min(steps), max(steps), 52, 404), axis(values, 186, 8)
    lines = [(name, " ".join(f"{across.at(s)},{up.at(v)}" for s, v in points)) for name, points in drawn.items()]
    return Curves(title, across, up, lines, [(name, up.at(value)) for name, value in levels])
