"""Whether one row or column of a table beats another, seed by seed and over all settings that both have."""

import statistics
from collections.abc import Mapping, Sequence

from subquad.results.statistics import LEVEL, Across, Comparison, across, compare
from subquad.results.table import Cell, Table
from subquad.utils.display import counted
from subquad.utils.errors import UserError

Values = Mapping[tuple[str, str], Mapping[int, float]]
"""Values of cells by row and column, then by seed."""


def compare_lines(table: Table, values: Values, names: Sequence[str]) -> list[str]:
    """Sentences on two rows, or two columns, in the order that they are named: one for each setting, one for all.

    Settings that evaluate the same runs count once for all, with the mean of their differences. Means and cells that
    are not trained are left out: they have no seeds of their own. The sign of a metric is changed if lower is better,
    so that a positive difference always means that the first is better. Raises UserError if the names are not two rows
    or two columns, or if no value of the metric is better than another.
    """
    first, second = opponents(table, names)
    pairs = [(where, a, b) for where, a, b in _pairs(table, first, second) if all(cell.trained for cell in (a, b))]
    if not pairs:
        raise UserError(f"Table {table.name} has no trained cells of both {first} and {second} to compare.")
    lines, differences = [], {(a.overrides, b.overrides): list[float]() for _, a, b in pairs}
    for where, a, b in pairs:
        if a.metric != b.metric or a.metric.better == "equal":
            raise UserError(f"{first} and {second} are not compared at {where}: their metric has no better side.")
        ours, other = (values.get((cell.row, cell.column), {}) for cell in (a, b))
        sign, unit = (-1.0 if a.metric.better == "lower" else 1.0), a.metric.unit
        paired = [sign * (ours[seed] - other[seed]) for seed in sorted(ours.keys() & other.keys())]
        if paired:
            differences[a.overrides, b.overrides].append(statistics.fmean(paired))
        lines.append(f"{where}: {_on_one(first, second, compare(_signed(ours, sign), _signed(other, sign)), unit)}")
    if len(pairs) == 1:
        return lines
    means = [statistics.fmean(found) for found in differences.values() if found]
    summary = _on_all(first, second, across(means), len(differences), {a.metric.unit for _, a, _ in pairs})
    same = " Settings that evaluate the same runs count once, with their mean." if len(differences) < len(pairs) else ""
    return [*lines, summary + same]


def against_reference(table: Table, values: Values) -> dict[tuple[str, str], Comparison]:
    """Each trained cell, by row and column, minus that of the table's reference row; see `Comparison`.

    The sign is changed if lower is better. Left out: cells with fewer than two seeds in common with the reference, and
    metrics without a better side.
    """
    found = {}
    for place, cell in table.cells.items():
        sign = {"higher": 1.0, "lower": -1.0}.get(cell.metric.better)
        other = (table.reference, cell.column)
        if sign is None or not cell.trained or place == other:
            continue
        row, reference = (_signed(values.get(p, {}), sign) for p in (place, other))
        if (comparison := compare(row, reference)) is not None:
            found[place] = comparison
    return found


def opponents(table: Table, names: Sequence[str]) -> tuple[str, str]:
    """The two rows or two columns that are named, in any case; raises UserError if the names are anything else."""
    lines = {"rows": [row.name for row in table.rows], "columns": [column.name for column in table.columns]}
    for known in lines.values():
        by_lower = {name.lower(): name for name in known}
        found = [name if name in known else by_lower.get(name.lower(), "") for name in names]
        if len(found) == 2 and all(found) and found[0] != found[1]:
            return found[0], found[1]
    raise UserError(
        f"compare={list(names)} must name two rows or two columns of table {table.name}, as in compare=[A,B]; its "
        f"rows are {', '.join(lines['rows'])}, its columns {', '.join(lines['columns'])}."
    )


def _pairs(table: Table, first: str, second: str) -> list[tuple[str, Cell, Cell]]:
    """Where both meet the same line of the other axis: its name, and the cells of both."""
    if any(row.name == first for row in table.rows):
        places = [(c.name, (first, c.name), (second, c.name)) for c in table.columns]
    else:
        places = [(r.name, (r.name, first), (r.name, second)) for r in table.rows]
    return [(where, table.cells[a], table.cells[b]) for where, a, b in places if {a, b} <= table.cells.keys()]


def _signed(values: Mapping[int, float], sign: float) -> dict[int, float]:
    return {seed: sign * value for seed, value in values.items()}


def _on_one(first: str, second: str, found: Comparison | None, unit: str) -> str:
    if found is None:
        return "too few common seeds (two are needed)."
    numbers = f"mean difference {_interval(found.difference, found.low, found.high, unit)}, {_p(found.p)}"
    return f"{_verdict(first, second, found)}; {numbers}, {found.seeds} common seeds."


def _on_all(first: str, second: str, found: Across | None, pairs: int, units: set[str]) -> str:
    if found is None or found.low is None or found.high is None:
        return f"All: too few settings with common seeds ({found.settings if found else 0} of {pairs}; two are needed)."
    ahead = f"{first} is ahead of {second} on {found.better} of {found.settings}"
    ahead += f" (equal on {found.equal})" if found.equal else ""
    numbers = f"mean difference {_interval(found.difference, found.low, found.high, ''.join(units))}"
    test = f"Wilcoxon signed-rank test over {counted(found.settings - found.equal, 'setting')}, {_p(found.p)}"
    missing = f"; {counted(pairs - found.settings, 'setting')} without a common seed"
    return f"All: {_verdict(first, second, found)}: {ahead}; {numbers}; {test}{missing * (found.settings < pairs)}."


def _verdict(first: str, second: str, found: Comparison | Across) -> str:
    if found.beats or found.loses:
        return f"{first} beats {second}" if found.beats else f"{second} beats {first}"
    return "no difference shown"


def _interval(mean: float, low: float, high: float, unit: str) -> str:
    unit = "points" if unit == "%" else unit
    return f"{mean:+.3g}{' ' * bool(unit)}{unit} [{low:+.3g}, {high:+.3g}] ({LEVEL:.0%})"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
