"""Rows that a user adds to a table of attentions, such as the arena: an attention of their own among the others.

They are kept in `rows/<table>.json` of the outputs: by name, the overrides of the row, and the learning rate of each
task that the table of rates beside the table has chosen for it.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from subquad.config.choices import file_of
from subquad.config.compose import load_own_attention
from subquad.config.task_metadata import task_of
from subquad.records import write_json
from subquad.results import table as tables
from subquad.results.model import FULL, Problem, Scope, TableResults
from subquad.results.table import Table
from subquad.utils.errors import UserError


@dataclass(frozen=True)
class AddedRow:
    """Overrides of a row, and by task the learning rate of its trained cells.

    final: the tasks whose rate was chosen at full scale.
    """

    overrides: tuple[str, ...]
    rates: Mapping[str, str] = field(default_factory=dict)
    final: tuple[str, ...] = ()

    def chosen(self, rates: Mapping[str, str], full: bool) -> "AddedRow":
        """The row with newly chosen rates. Those of full scale are replaced by others of full scale only."""
        new = {task: rate for task, rate in rates.items() if full or task not in self.final}
        return AddedRow(self.overrides, {**self.rates, **new}, tuple({*self.final, *(new if full else ())}))


_RATES = "_rates"
_FILE = TypeAdapter(dict[str, AddedRow])


def path_of(outputs: Path, table: str) -> Path:
    """The file of a table's added rows, which its table of rates shares."""
    return outputs / "rows" / f"{table.removesuffix(_RATES)}.json"


def read(outputs: Path, table: str) -> dict[str, AddedRow]:
    """The rows that were added to a table, by name. Raises UserError for a file that cannot be read."""
    path = path_of(outputs, table)
    with suppress(FileNotFoundError):
        try:
            rows = _FILE.validate_json(path.read_bytes())
        except ValueError as error:
            raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}); remove it.") from None
        return {name: AddedRow(row.overrides) for name, row in rows.items()} if table.endswith(_RATES) else rows
    return {}


def keep(outputs: Path, table: str, name: str, row: AddedRow) -> None:
    """Adds a row to the file, or its rates to those that are known."""
    path, rows = path_of(outputs, table), read(outputs, table.removesuffix(_RATES))
    known = rows.get(name, AddedRow(row.overrides))
    rows[name] = AddedRow(row.overrides, {**known.rates, **row.rates}, tuple(sorted({*known.final, *row.final})))
    write_json(path, json.loads(_FILE.dump_json(rows)))


def free_rows(outputs: Path, table: Table) -> tuple[dict[str, AddedRow], list[Problem]]:
    """The kept rows that the table can have here, and why it cannot have the others."""
    own, free, others = {row.name for row in table.rows}, {}, []
    for name, row in read(outputs, table.name).items():
        try:
            if name in own:
                raise UserError(f"table {table.name} has one of that name; rename or remove it here")
            attention, *settings = row.overrides or ("",)
            load_own_attention(attention.partition("=")[2], settings)
        except UserError as error:
            others.append(Problem(path=str(path_of(outputs, table.name)), message=f'row "{name}": {error}'))
        else:
            free[name] = row
    return free, others


def with_rows(table: Table, rows: Mapping[str, AddedRow]) -> Table:
    """The table with more rows. Raises UserError if it has one of them, or is not one of attentions of this project."""
    if not rows:
        return table
    if not table.takes_rows:
        raise UserError(
            f"No row can be added to table {table.name}, a paper's or one without attentions as rows; try table=arena."
        )
    if twice := [name for name in rows if name in {row.name for row in table.rows}]:
        raise UserError(f'Table {table.name} has a row "{twice[0]}"; give yours another name.')
    if wrong := [name for name in rows if not re.fullmatch(r"[\w .+-]+", name)]:
        raise UserError(
            f'A row cannot be added to table {table.name} as "{wrong[0]}"; a name has letters, digits, blanks, . + - _'
        )
    file = file_of("table", table.name)
    assert file is not None
    grown = tables.load(file, table.name, {name: row.overrides for name, row in rows.items()})
    cells = dict(grown.cells)
    for (name, column), cell in grown.cells.items():
        rate = rows[name].rates.get(task_of(cell.overrides)) if name in rows else None
        if rate is not None and cell.trained:
            cells[name, column] = dataclasses.replace(cell, overrides=(*cell.overrides, f"optimizer.lr={rate}"))
    return dataclasses.replace(grown, cells=cells, added=tuple(rows))


def add_kept(into: Iterable[Table], outputs: Path) -> tuple[list[Table], list[Problem]]:
    """The tables with the rows that the user has added; without them, and with a problem, where one is wrong."""
    grown, problems = [], []
    for table in into:
        try:
            rows, others = free_rows(outputs, table)
            problems += others
            table = with_rows(table, rows)
        except UserError as error:
            problems.append(Problem(path=str(path_of(outputs, table.name)), message=str(error)))
        grown.append(table)
    return grown, problems


def rates_of(table: str) -> str | None:
    """The table in which the learning rates of a table's rows are chosen: arena_rates of arena; None without one."""
    name = f"{table}{_RATES}"
    return name if file_of("table", name) is not None else None


def best_rates(rates: TableResults, scope: Scope = FULL) -> dict[tuple[str, str], str]:
    """The rate with the best mean by row and task; of equally good ones the lowest. Left out where a run is missing.

    rates: a table whose columns are named after a task and a rate: "recall 3.0e-3". scope: whose runs are compared.
    """
    measured: dict[tuple[str, str], dict[str, float | None]] = {}  # larger is better
    for (row, column), cell in rates.cells.items():
        task, _, rate = column.rpartition(" ")
        summary = None if (result := cell.fullest(scope)) is None else result.summary
        sign = -1 if cell.cell.metric.better == "lower" else 1
        score = None if summary is None or summary.seeds < cell.cell.seeds else sign * summary.mean
        measured.setdefault((row, task), {})[rate] = score
    chosen = {}
    for place, scores in measured.items():
        known = {rate: score for rate, score in scores.items() if score is not None}
        if len(known) == len(scores):
            chosen[place] = max(sorted(known, key=float), key=known.__getitem__)
    return chosen


def rates_by_task(rates: TableResults, row: str, scope: Scope) -> dict[str, str]:
    """The best rates of a row by `task=`."""
    tasks = {column.name.rpartition(" ")[0]: task_of(column.overrides) for column in rates.table.columns}
    return {tasks[name]: rate for (own, name), rate in best_rates(rates, scope).items() if own == row}
