"""Charts as numbers, which assets/charts.js draws with Observable Plot in the colours of the page, light or dark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from subquad.config.mechanisms import mechanism_of
from subquad.measure.growth import NO_ATTENTION
from subquad.report.mechanism_style import colours
from subquad.report.verdict_style import MARKS
from subquad.results.answers import ColumnPairs
from subquad.results.benches import bench_device, bench_times
from subquad.results.model import CellResults, Run, Scope, TableResults

POINTS = 160
"""A curve is drawn with at most so many points."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one scope; None for one that no filter hides.

    spec: kind (lines, scatter or comparison), the names of the axes, and the numbers.
    """

    title: str
    caption: str
    spec: Mapping[str, Any]
    scope: Scope | None = None


def comparisons(parts: Sequence[CellResults], tables: Sequence[str] = (), root: str = "") -> list[Chart]:
    """Ours beside printed, one for each metric and scope with numbers; none for metrics without a better side.

    tables: of each part, where they differ. root: where the folder of their pages is.
    """
    groups: dict[tuple[str, Scope], list[dict[str, Any]]] = {}
    for part, table in zip_longest(parts, tables, fillvalue=""):
        assert isinstance(part, CellResults)
        for value in part.results:
            if value.summary is not None and part.cell.metric.better != "equal" and math.isfinite(value.summary.mean):
                label = " ".join(filter(None, (part.cell.metric.label or part.cell.metric.name, part.cell.metric.unit)))
                printed = part.cell.printed
                groups.setdefault((label, value.scope), []).append({
                    "name": f"{table}{': ' if table else ''}{part.cell.row} / {part.cell.column}",
                    "href": f"{f'{root}tables/{table}.html' if table else ''}#{part.anchor}",
                    "verdict": MARKS[value.verdict].colour, "sign": MARKS[value.verdict].sign,
                    "mean": value.summary.mean,
                    "half": value.summary.half_width or 0, "printed": None if printed is None else printed.value,
                    "spread": 0 if printed is None else printed.spread or 0,
                    "text": f"ours {value.text}, printed {printed.text if printed else 'nothing'}, "
                    f"{value.verdict.value}",
                })  # fmt: skip
    caption = "Dot: our mean with its 95 % interval; upright line: printed, with its spread."
    return [
        Chart(label, caption, {"kind": "comparison", "x": label, "rows": rows}, scope)
        for (label, scope), rows in sorted(groups.items(), key=lambda group: (not group[0][1].full, group[0][1].label))
    ]


def scatters(part: TableResults, href: str = "") -> list[Chart]:
    """The charts that a table declares, in each scope in which at least two rows have both values."""
    drawn = [_scatter(part, x, y, scope, href) for x, y in part.table.charts for scope in part.scopes]
    return [chart for chart in drawn if chart is not None]


def choice(part: TableResults) -> Chart | None:
    """Every need of a table against every cost, as one chart with a choice of both; at full scale, with all seeds.

    Its numbers are those of `_scatter`, by column: mean, half of the interval, place of the cell, text.
    """
    columns = {name: _axis(part, name) for name in (*part.table.costs, *part.table.needs)}
    points, levels = [], dict[str, list[list[Any]]]()
    for row in part.table.rows:
        values = {}
        for column in columns:
            cell = part.cells[row.name, column]
            result = cell.at_full_scale
            if result is None or result.summary is None or not math.isfinite(result.summary.mean):
                continue
            if cell.cell.trained and len(result.values) < cell.cell.seeds:
                continue
            mean, half = (float(f"{number:.5g}") for number in (result.summary.mean, result.summary.half_width or 0))
            values[column] = [mean, half, f"#{cell.anchor}", result.text]
            if result.baselines:
                levels[column] = [[name, score] for name, score in result.baselines.items()]
        own = row.name in part.table.added
        colour = _OWN if own else colours(mechanism_of(row.overrides))
        points.append({"name": row.name, "colour": colour, "own": own, "values": values})
    if sum(bool(point["values"]) for point in points) < 2:
        return None
    x, y = next(iter(part.table.charts), (next(iter(part.table.costs)), next(iter(part.table.needs))))
    spec = {
        "kind": "choice", "columns": columns, "points": points, "levels": levels, "x": x, "y": y,
        "choices": {"x": list(part.table.costs), "y": list(part.table.needs)},
    }  # fmt: skip
    return Chart("Accuracy against cost", f"{_CAPTION} Squares are rows of your own.", spec)


def matrix(found: Sequence[ColumnPairs]) -> Chart:
    """Which pairs of rows differ, with a choice of the column: a square for each pair, of rows by their means."""
    columns = {}
    for each in found:
        place = {row: i for i, row in enumerate(each.means)}
        pairs = [
            [place[p.a], place[p.b], "< 0.001" if p.corrected < 0.001 else f"= {p.corrected:.3f}"]
            for p in each.pairs
            if p.differs
        ]
        columns[each.column] = {"rows": [[row, f"{mean:.1f}"] for row, mean in each.means.items()], "pairs": pairs}
    spec = {"kind": "choice", "matrix": columns, "x": found[0].column, "choices": {"x": list(columns)}}
    caption = (
        "Rows by their mean, the best first. A filled square: the row is better than the one with the number above it; "
        "a pale one: the two are within chance of one another."
    )
    return Chart("Pairs that differ", caption, spec)


def _axis(part: TableResults, column: str) -> str:
    """The name of a column with what its numbers are."""
    metric = part.cells[part.table.rows[0].name, column].cell.metric
    label = f"{metric.label}{f', {metric.unit}' if metric.unit else ''}"
    return column if label in column else f"{column} ({label})"


_OWN = ("#0b57d0", "#8ab4f8")
"""The colour of rows that the user has added, light and dark: that of links."""
_CAPTION = "Mean with its 95 % interval, cut at the edge; lines: scores without a model. Each point leads to its cell."


def tall(chart: Chart) -> Chart:
    """The chart for a place that is about as high as it is wide."""
    return replace(chart, spec={**chart.spec, "tall": True})


def _scatter(part: TableResults, x: str, y: str, scope: Scope, href: str) -> Chart | None:
    points: list[dict[str, Any]] = []
    baselines: Mapping[str, float] = {}
    for row in part.table.rows:
        cells = [part.cells.get((row.name, column)) for column in (x, y)]
        found = [None if cell is None else cell.within(scope) for cell in cells]
        across, up = (None if result is None else result.summary for result in found)
        if across is None or up is None or across.mean <= 0 or not math.isfinite(across.mean + up.mean):
            continue
        cell, result = cells[1], found[1]
        assert cell is not None
        assert result is not None
        baselines = result.baselines or baselines
        points.append({
            "name": row.name, "href": f"{href}#{cell.anchor}", "x": across.mean, "y": up.mean,
            "half": up.half_width or 0, "colour": colours(mechanism_of(cell.cell.overrides)),
            "text": f"{y} {result.text}, {x} {across.mean:.3g}",
        })  # fmt: skip
    if len(points) < 2:
        return None
    # A score without a model that is far from all means would press them together; the table names it too.
    low, high = (edge(point["y"] for point in points) for edge in (min, max))
    levels = [[name, s] for name, s in baselines.items() if 2 * low - high <= s <= 2 * high - low]
    spec = {"kind": "scatter", "x": _axis(part, x), "y": _axis(part, y), "points": points, "levels": levels}
    return Chart(f"{y} against {x}", _CAPTION, spec, scope)


def speed_chart(bench: Mapping[str, Any]) -> Chart:
    """The times of the whole model in a benchmark, by length."""
    settings, machine = bench["settings"], bench["machine"]
    device = bench_device(bench)
    where = device if device == machine.get("gpu") else f"{machine['threads']} threads of {device}"
    caption = f"One forward pass, {settings['layers']} layers, d = {settings['dims'][0]}, on {where}. Lower is faster."
    return cost_chart(bench_times(bench["results"]), "milliseconds", "Speed", caption)


def cost_chart(costs: Mapping[str, Mapping[int, float]], unit: str, title: str, caption: str = "") -> Chart:
    """Costs of each attention by length, on logarithmic axes; references are dashed."""
    lines = [
        {
            "name": name.replace("_", " "), "points": [[n, float(f"{cost:.5g}")] for n, cost in sorted(line.items())],
            "dash": name in (NO_ATTENTION, "softmax_explicit"),
            "colour": colours("" if name == NO_ATTENTION else mechanism_of((f"attention={name}",))),
        }
        for name, line in costs.items()
    ]  # fmt: skip
    return Chart(title, caption, {"kind": "lines", "x": "tokens", "y": unit, "log": True, "lines": lines, "levels": []})


def run_curves(run: Run) -> list[Chart]:
    """Losses, and the metric that picks the best epoch with its score on the test split and the baseline scores."""
    losses = {name: _points(run, name) for name in ("train/loss", "val/loss")}
    metric = {f"val/{run.monitor}": _points(run, f"val/{run.monitor}")}
    levels = [(name, score) for name, score in run.record.metrics.items() if name == f"test/{run.monitor}"]
    levels += list(run.record.baselines.items())
    drawn = [_curves("loss", losses, []), _curves(run.monitor, metric, levels) if run.monitor != "loss" else None]
    return [chart for chart in drawn if chart is not None]


def cell_curves(runs: Sequence[Run]) -> Chart | None:
    """The validation metric of a cell's runs, seed by seed."""
    if not runs or any(run.monitor != runs[0].monitor for run in runs):
        return None
    name = f"val/{runs[0].monitor}"
    return _curves(name, {f"seed {run.record.seed}": _points(run, name) for run in runs}, [])


def _points(run: Run, name: str) -> list[tuple[int, float]]:
    points = [(step, row[name]) for step, row in sorted(run.history.items()) if name in row]
    points = [(step, float(f"{value:.5g}")) for step, value in points if math.isfinite(value)]
    stride = max(1, math.ceil(len(points) / POINTS))
    return [*points[:-1:stride], *points[-1:]]


def _curves(
    title: str, series: Mapping[str, Sequence[tuple[int, float]]], levels: Sequence[tuple[str, float]]
) -> Chart | None:
    lines = [{"name": name, "points": points} for name, points in series.items() if len(points) > 1]
    finite = [(name, value) for name, value in levels if math.isfinite(value)]
    spec = {"kind": "lines", "x": "optimiser step", "y": title, "log": False, "lines": lines, "levels": finite}
    return Chart(title, f"{title} by optimiser step.", spec) if lines else None
