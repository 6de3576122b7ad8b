"""A table of a paper in the terminal: ours beside the printed values."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from subquad.results.footnotes import notes
from subquad.results.statistics import summarise
from subquad.results.table import Cell, Place, Table
from subquad.results.verdict import Verdict, cell_verdict

_COLOUR = {
    Verdict.REPRODUCED: "green", Verdict.NOISE: "cyan", Verdict.ABOVE: "blue", Verdict.BELOW: "red",
    Verdict.INCOMPLETE: "yellow",
}  # fmt: skip

NEEDS_DATA = "×"
"""The mark of a cell that was not run because its data are not on this machine."""

Values = Mapping[Place, Mapping[int, float]]
"""Of each row and column, by seed."""


def show_table(
    table: Table, values: Values, full: bool, note: str = "", said: Mapping[Place, str] | None = None,
    remarks: Mapping[str, Sequence[Place]] | None = None, lacking: Mapping[Place, str] | None = None,
) -> None:  # fmt: skip
    """Prints each cell as `ours (printed)`, coloured by its verdict; a dash where nothing has been measured.

    full: whether the runs are of the paper's scale and on real data, so that verdicts may be given. said: cells that
    hold words, which have no verdict. remarks: why cells could not be measured here, or how they were. lacking: what
    data cells need that are not here; they have a mark in place of the dash.
    """

    def shown(row: str, column: str) -> str:
        cell = table.cells.get((row, column))
        return "" if cell is None else _text(table, cell, values, full, said or {}, lacking or {})

    columns = {column.name: [shown(row.name, column.name) for row in table.rows] for column in table.columns}
    console = Console(highlight=False)
    console.print(f"[bold]{table.name}: {table.title}[/]{note}", soft_wrap=True)
    for part in _parts([row.name for row in table.rows], columns, console):
        console.print(part)
    console.print(f"[dim]{table.source}; printed values in brackets[/]", soft_wrap=True)
    if lacking:
        console.print(f"{NEEDS_DATA} {Verdict.NEEDS_DATA.value} that are not on this machine:", soft_wrap=True)
    for reason in dict.fromkeys((lacking or {}).values()):
        console.print(f"  {escape(reason)}", soft_wrap=True)
    for about, text in notes(table):
        console.print(f"[dim]{escape(about)}: {escape(text)}[/]", soft_wrap=True)
    for reason, places in (remarks or {}).items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        console.print(f"{escape(' / '.join(places[0]))}{more}: {escape(reason)}", soft_wrap=True)


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


def _text(
    table: Table, cell: Cell, values: Values, full: bool, said: Mapping[Place, str], lacking: Mapping[Place, str]
) -> str:
    found = values.get((cell.row, cell.column), {})
    printed = "" if cell.printed is None else f" [dim]({escape(cell.printed.text)})[/]"
    if words := said.get((cell.row, cell.column)):
        return f"{escape(words)}{printed}"
    if not found:
        needs_data = (cell.row, cell.column) in lacking
        empty = cell_verdict(cell, found, full, needs_data) is Verdict.NEEDS_DATA
        return f"{NEEDS_DATA if empty else '-'}{printed}"
    judged = cell_verdict(cell, found, full)
    ours = summarise(found).text(cell.digits)
    colour = _COLOUR.get(judged)
    counted = f" [dim]{len(found)}/{cell.seeds}[/]" if judged is Verdict.INCOMPLETE else ""
    return f"[{colour}]{ours}[/]{counted}{printed}" if colour else f"{ours}{counted}{printed}"
