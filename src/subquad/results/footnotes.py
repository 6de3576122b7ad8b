"""What is to be said of cells of a table: doubts, misprints, and why some cannot be run."""

from collections import defaultdict

from subquad.results.table import Table


def notes(table: Table) -> list[tuple[str, str]]:
    """Each remark once, with what it is said of: a row, a column or cells."""
    said: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for cell in table:
        for text in (*cell.notes, *([cell.missing] if cell.missing and cell.printed is not None else [])):
            said[text].append((cell.row, cell.column))
    return [(_places(table, places), text) for text, places in said.items()]


def _places(table: Table, places: list[tuple[str, str]]) -> str:
    """A whole row or column by its name, else the cells."""
    rows, columns = (list(dict.fromkeys(place[i] for place in places)) for i in (0, 1))
    if len(rows) == len(table.rows) > 1 and len(columns) > 1:
        every = all(column.name in columns for column in table.columns)
        return "all cells" if every else ", ".join(columns)
    if len(columns) > 1 or len(table.columns) == 1:
        return ", ".join(rows)
    return f"{', '.join(rows)} / {columns[0]}" if len(rows) < len(table.rows) - 1 else columns[0]
