"""Notes on the cells of a table: their metrics, doubts, misprints, and why some cells are not run."""

from collections import defaultdict
from collections.abc import Sequence

from subquad.results.table import EMPTY, Place, Table


def notes(table: Table) -> list[tuple[str, str]]:
    """Each note once, with the rows, columns or cells that it is about."""
    found: dict[str, list[Place]] = defaultdict(list)
    for cell in table:
        for text in (*cell.notes, *([cell.unavailable] if cell.unavailable and cell.printed is not None else [])):
            found[text].append(cell.place)
    return [(_places(table, places), text) for text, places in found.items()]


def metrics(table: Table) -> list[tuple[str, str]]:
    """Each metric that has a label, with its unit and its better side, and the cells that it is about."""
    found: dict[str, list[Place]] = defaultdict(list)
    for cell in table:
        if cell.metric.label:
            unit = f" in {cell.metric.unit}" if cell.metric.unit else ""
            side = "" if cell.metric.better == "equal" else f", {cell.metric.better} is better"
            found[f"{cell.metric.label}{unit}{side}"].append(cell.place)
    return [(_places(table, places), text) for text, places in found.items()]


def not_run(tables: Sequence[Table]) -> str:
    """Which cells are not run because a dash is printed there; empty without such cells."""
    several = len(tables) > 1
    cells = [
        f"{table.name} {name}" if several else name
        for table in tables
        for cell in table
        if cell.unavailable == EMPTY and not cell.mean and (name := " / ".join(cell.place))
    ]
    return f'Not run, because the table prints "-" there ("?" would run it): {few(cells)}.' if cells else ""


def few(cells: Sequence[str], most: int = 8) -> str:
    """The first names of cells, and how many more there are."""
    more = f" and {len(cells) - most} more" if len(cells) > most else ""
    return ", ".join(cells[:most]) + more


def _places(table: Table, places: list[Place]) -> str:
    """Whole rows or columns by their names, else the cells, rows with the same columns together."""
    rows, columns = (list(dict.fromkeys(place[i] for place in places)) for i in (0, 1))
    shown = {column.name for column in table.columns}
    others = {c.place for c in table if c.column in shown and not (c.unavailable and c.printed is None)} - {*places}
    if not others and len(rows) > 1 and len(columns) > 1:
        return "all cells"
    if (len(columns) > 1 or len(shown) == 1) and not any(row in rows for row, _ in others):
        return ", ".join(rows)
    if len(rows) > 1 and not any(column in columns for _, column in others):
        return ", ".join(columns)
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        groups.setdefault(tuple(column for name, column in places if name == row), []).append(row)
    return "; ".join(f"{', '.join(names)} / {', '.join(own)}" for own, names in groups.items())
