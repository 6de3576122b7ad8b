"""A table of a paper in the terminal: ours beside the printed values."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table as Grid

from subquad.tables.statistics import Summary, summarise
from subquad.tables.table import Cell, Table
from subquad.tables.verdict import Verdict, judge

_COLOUR = {
    Verdict.REPRODUCED: "green", Verdict.NOISE: "cyan", Verdict.ABOVE: "blue", Verdict.BELOW: "red",
    Verdict.INCOMPLETE: "yellow",
}  # fmt: skip

Values = Mapping[tuple[str, str], Mapping[int, float]]
"""Of each row and column, by seed."""


def show_table(table: Table, values: Values, full: bool, note: str = "") -> None:
    """Prints each cell as `ours (printed)`, coloured by its verdict; a dash where nothing has been measured.

    full: whether the runs are of the paper's scale and on real data, so that verdicts may be given.
    """
    grid = Grid()
    grid.add_column("")
    for column in table.columns:
        grid.add_column(column.name, justify="right")
    for row in table.rows:
        cells = (table.cells.get((row.name, column.name)) for column in table.columns)
        grid.add_row(row.name, *("" if cell is None else _text(table, cell, values, full) for cell in cells))
    console = Console(highlight=False)
    console.print(f"[bold]{table.name}: {table.title}[/]{note}", soft_wrap=True)
    console.print(grid)
    console.print(f"[dim]{table.source}; printed values in brackets[/]", soft_wrap=True)


def verdict(table: Table, cell: Cell, values: Mapping[int, float], full: bool) -> Verdict:
    """What may be said of a cell with these values."""
    if not values:
        return Verdict.NOT_RUN
    if not full and not cell.measure:
        return Verdict.OTHER_SCALE
    if cell.printed is None or cell.printed.value is None:
        return Verdict.NOT_PRINTED
    seeds = table.seeds if cell.trained or cell.mean else 1
    return judge(summarise(values), cell.printed, seeds, cell.metric.better)


def _text(table: Table, cell: Cell, values: Values, full: bool) -> str:
    found = values.get((cell.row, cell.column), {})
    printed = "" if cell.printed is None else f" [dim]({cell.printed.text})[/]"
    if not found:
        return f"-{printed}"
    said = verdict(table, cell, found, full)
    ours = number(summarise(found), cell)
    colour = _COLOUR.get(said)
    counted = f" [dim]{len(found)}/{table.seeds}[/]" if said is Verdict.INCOMPLETE else ""
    return f"[{colour}]{ours}[/]{counted}{printed}" if colour else f"{ours}{counted}{printed}"


def number(summary: Summary, cell: Cell) -> str:
    """Mean ± standard deviation, with the digits that are printed."""
    digits = cell.printed.digits if cell.printed is not None and cell.printed.value is not None else 2
    spread = "" if summary.std is None else f" ± {summary.std:.{digits}f}"
    return f"{summary.mean:.{digits}f}{spread}"
