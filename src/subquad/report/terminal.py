"""A table of a paper in the terminal: ours beside the printed values."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from subquad.results.differences import smallest
from subquad.results.footnotes import not_run, notes
from subquad.results.model import PROJECT, CellResult, CellResults, Scope, TableResults
from subquad.results.side_lines import SMALLEST, side_lines
from subquad.results.table import Cell, Place, Table
from subquad.results.verdict import Verdict

_COLOUR = {
    Verdict.REPRODUCED: "green", Verdict.NOISE: "cyan", Verdict.BETTER: "blue", Verdict.WORSE: "red",
    Verdict.MORE: "blue", Verdict.LESS: "red", Verdict.INCOMPLETE: "yellow",
}  # fmt: skip

NEEDS_DATA = "×"
"""The mark of a cell that was not run because its data are not on this machine."""

OF_PROJECT = "°"
"""The mark of a number that the project measured (docs/results)."""


def show_table(results: TableResults, scope: Scope) -> None:
    """Prints each cell as `ours (printed)`, coloured by its verdict, then notes, missing data and remarks.

    A dash is a cell that has not been measured; one whose data are missing has a mark of its own. A number that the
    project measured stands behind ours, with a mark. Scores without a model, and the smallest difference beyond chance,
    come last.
    """
    table, found = results.table, results.within(scope)
    project = results.within(replace(scope, project=True))
    rows, columns = _texts(results, found, project, scope)
    console = Console(highlight=False)
    console.print(f"[bold]{table.name}: {table.title}[/]{scope.note}", soft_wrap=True)
    for part in _parts(rows, columns, console):
        console.print(part)
    console.print(f"[dim]{escape(source(table))}[/]", soft_wrap=True)
    if any(result.text for result in project.values()):
        console.print(f"[dim]{OF_PROJECT} {PROJECT.label} (docs/results), not here[/]", soft_wrap=True)
    if smallest(table)[1]:
        line = f"{SMALLEST}: what two printed values need (docs/differences.md); ≥ where a spread is not printed"
        console.print(f"[dim]{line}[/]", soft_wrap=True)
    if missing := dict.fromkeys(result.missing_data for result in found.values() if result.missing_data):
        console.print(f"{NEEDS_DATA} {Verdict.NEEDS_DATA.value} that are not on this machine:", soft_wrap=True)
        for reason in missing:
            console.print(f"  {escape(reason)}", soft_wrap=True)
    if left_out := not_run([table]):
        console.print(f"[dim]{escape(left_out)}[/]", soft_wrap=True)
    for about, text in notes(table):
        console.print(f"[dim]{escape(about)}: {escape(text)}[/]", soft_wrap=True)
    _show_remarks(console, found)


def _show_remarks(console: Console, found: Mapping[Place, CellResult]) -> None:
    """Each remark once, with the cells that it is about."""
    remarks: dict[str, list[Place]] = defaultdict(list)
    for place, result in found.items():
        for remark in result.remarks:
            remarks[remark].append(place)
    for remark, places in remarks.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        console.print(f"{escape(' / '.join(places[0]))}{more}: {escape(remark)}", soft_wrap=True)


def _texts(
    results: TableResults, found: Mapping[Place, CellResult], project: Mapping[Place, CellResult], scope: Scope
) -> tuple[list[str], dict[str, list[str]]]:
    """The names of the rows, and the texts of each column; then the lines that stand beside them."""

    def counted(cell: CellResults) -> CellResult | None:
        known = (results.get(cell.cell.place) for results in (found, project))
        return next((result for result in known if result is not None and result.baselines), None)

    table, lines = results.table, side_lines(results, counted, scope.full)
    columns = {
        column.name: [
            *(_text(table, found, project, (row.name, column.name)) for row in table.rows),
            *(f"[dim]{texts.get(column.name, '')}[/]" for texts in lines.foot.values()),
        ]
        for column in table.columns
    }
    for name, texts in lines.side.items():
        columns[f"[dim]{name}[/]"] = [f"[dim]{texts.get(row.name, '')}[/]" for row in table.rows]
        columns[f"[dim]{name}[/]"] += [""] * len(lines.foot)
    return [*(row.name for row in table.rows), *(f"[dim]{name}[/]" for name in lines.foot)], columns


def source(table: Table) -> str:
    """Where a table is from, and how its printed values are shown, if it has some."""
    printed = any(cell.printed for cell in table.cells.values())
    return f"{table.source}; printed values in brackets" if printed else table.source


def _parts(rows: Sequence[str], columns: Mapping[str, Sequence[str]], console: Console) -> list[Grid]:
    """The columns in one grid or, where the terminal is too narrow for that, in several: a row stays one line."""
    unbounded = console.options.update(max_width=1_000_000)
    parts: list[list[str]] = [[]]
    for name in columns:
        wider = _grid(rows, columns, [*parts[-1], name])
        if parts[-1] and console.measure(wider, options=unbounded).maximum > console.width:
            parts.append([])
        parts[-1].append(name)
    return [_grid(rows, columns, part) for part in parts]


def _grid(rows: Sequence[str], columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> Grid:
    grid = Grid("")
    for name in names:
        grid.add_column(name, justify="right")
    for place, row in enumerate(rows):
        grid.add_row(row, *(columns[name][place] for name in names))
    return grid


def _text(table: Table, results: Mapping[Place, CellResult], project: Mapping[Place, CellResult], place: Place) -> str:
    if place not in results:
        return ""
    cell, result = table.cells[place], results[place]
    numbers = [_number(cell, result)] if result.text else []
    if place in project and project[place].text:
        numbers.append(f"{_number(cell, project[place])}{OF_PROJECT}")
    missing = NEEDS_DATA if result.verdict is Verdict.NEEDS_DATA else "-"
    printed = "" if cell.printed is None else f" [dim]({escape(cell.printed.text)})[/]"
    return f"{' '.join(numbers) or missing}{printed}"


def _number(cell: Cell, result: CellResult) -> str:
    colour, text = _COLOUR.get(result.verdict), escape(result.text)
    counted = f" [dim]{len(result.values)}/{cell.seeds}[/]" if result.verdict is Verdict.INCOMPLETE else ""
    return f"{f'[{colour}]{text}[/]' if colour else text}{counted}"
