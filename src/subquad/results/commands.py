"""Lines to paste into a shell."""

import json
from collections.abc import Iterable

from subquad.results.table import Cell, Table
from subquad.utils.display import command_line

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def table_command(table: Table) -> str:
    """The command that fills a table."""
    return command_line("python scripts/reproduce.py", [f"table={table.name}"])


def cell_command(table: Table, cell: Cell) -> str:
    """The command that fills one cell: a mean with its parts, or a hidden part with the mean that shows it."""
    shown = [column.name for column in table.columns]
    rows, columns = {cell.row}, {cell.column}
    if cell.mean:
        rows, columns = rows | {row for row, _ in cell.mean}, columns | {column for _, column in cell.mean}
    elif cell.column not in shown:
        columns = {c.column for c in table if c.row == cell.row and (cell.row, cell.column) in c.mean}
    overrides = [f"table={table.name}"]
    overrides += _chosen("rows", [row.name for row in table.rows], rows)
    overrides += _chosen("columns", shown, columns)
    return command_line("python scripts/reproduce.py", overrides)


def _chosen(key: str, names: list[str], wanted: set[str]) -> list[str]:
    """The setting that selects some of the names; none if all are wanted."""
    kept = [name for name in names if name in wanted]
    return [] if len(kept) == len(names) > 1 else [f"{key}={_list(kept)}"]


def _list(names: Iterable[str]) -> str:
    """A list as scripts read it: YAML, where a name that is more than a word stands in quotes."""
    return f"[{','.join(name if _bare(name) else json.dumps(name, ensure_ascii=False) for name in names)}]"


def _bare(name: str) -> bool:
    return set(name) <= _PLAIN and name.lower() not in _WORDS
