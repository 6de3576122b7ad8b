"""From the outputs folder and configs/table/ to the content of the page: each cell with the runs that fill it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subquad.config.choices import options
from subquad.config.compositions import Compositions
from subquad.records import RESULT, now
from subquad.results import measurement_cache
from subquad.results.cells import Runs, load_table
from subquad.results.commands import cell_command, table_command
from subquad.results.missing_data import with_means
from subquad.results.model import FULL, CellPart, Content, Problem, Run, Scope, TablePart, Value
from subquad.results.scan import Ledger, newest, read_ledger, read_measurements
from subquad.results.statistics import summarise
from subquad.results.table import Cell, Place, Table
from subquad.results.verdict import Verdict, cell_verdict

_DATA_WORDS = ("task=", "experiment=", "recipe=", "data", "limits.")

Progress = Callable[[str], None]
"""Told the name of each table before its runs are looked for."""


def gather(names: Sequence[str], words: Sequence[str] = (), progress: Progress = lambda name: None) -> Content:
    """What is known of these tables and of all runs. `words` are settings of paths: paths.outputs=<folder>.

    A configuration is composed only for a cell whose task and attention some run of the same scope has, and is
    remembered: without runs nothing is composed, and a second call composes nothing.
    """
    compositions = Compositions()
    outputs = Path(compositions[words].outputs)
    ledger = read_ledger(outputs / "runs")
    kept, broken = read_measurements(outputs / "measured")
    broken += _unknown_scopes(ledger)
    tables = [load_table(name) for name in names]
    found: dict[str, dict[Place, list[Value]]] = {table.name: {} for table in tables}
    claimed: set[Path] = set()
    lacking: dict[tuple[str, Place], str] = {}
    for scope in _scopes(ledger, kept):
        ran = {(run.record.task, run.record.attention) for run in ledger.runs.values() if run.scope == scope}
        one = _InScope(scope, Runs([*scope.words, *words], compositions), ledger, kept, ran)
        one.compose(tables)
        for table in tables:
            progress(table.name)
            for place, value in one.values(table, claimed).items():
                found[table.name].setdefault(place, []).append(value)
            if scope == FULL:
                lacking |= {(table.name, place): needs for place, needs in one.lacking(table).items()}
    compositions.save()
    parts = [_table_part(table, found[table.name], lacking) for table in tables]
    return Content(
        tables=parts, runs=list(ledger.runs.values()),
        own=[run for folder, run in ledger.runs.items() if folder not in claimed],
        broken=[*ledger.broken, *broken], failed=ledger.failed, unfinished=ledger.unfinished,
        pictures=sorted((outputs / "figures").rglob("*.png")), benches=newest(outputs / "bench", "*/index.html", 5),
        made=now(),
    )  # fmt: skip


def all_tables() -> list[str]:
    """The names of all tables, each paper's in the order of their numbers."""
    return sorted(options("table"), key=lambda name: (name.partition("/")[0], _number(name.partition("/")[2])))


def _number(text: str) -> tuple[int, str]:
    digits, rest = re.fullmatch(r"(\d*)(.*)", text).groups()  # type: ignore[union-attr]
    return (int(digits or 1000), rest)


def _scopes(ledger: Ledger, kept: Mapping[Path, Mapping[str, Any]]) -> list[Scope]:
    """Full scope, then every other that a run or a measurement has and that can be composed."""
    ran = {run.scope for run in ledger.runs.values()}
    others = (ran | {_scope_of(content["words"]) for content in kept.values()}) - {FULL}
    return [FULL, *sorted(scope for scope in others if not _unknown(scope))]


def _unknown(scope: Scope) -> list[str]:
    """What of a scope has no file in configs/."""
    chosen = {"scale": scope.scale, "protocol": scope.protocol}
    return [f"{group} {name!r}" for group, name in chosen.items() if name not in options(group)]


def _unknown_scopes(ledger: Ledger) -> list[Problem]:
    """Runs that no table can show, because their scale or protocol is not known here."""
    return [
        Problem(
            path=str(folder / RESULT),
            message=f"There is no {' and no '.join(unknown)} in configs/, so this run fills no cell; add the file.",
        )
        for folder, run in ledger.runs.items()
        if (unknown := _unknown(run.scope))
    ]


def _scope_of(words: Iterable[str]) -> Scope:
    chosen = dict(str(word).partition("=")[::2] for word in words)
    return Scope(chosen.get("scale", "paper"), chosen.get("protocol", "paper"), chosen.get("data") == "synthetic")


def _table_part(
    table: Table, found: Mapping[Place, Sequence[Value]], lacking: Mapping[tuple[str, Place], str]
) -> TablePart:
    places = {place: (i, j) for j, i, place in _numbered(table)}
    cells = {}
    for place, cell in table.cells.items():
        full, *others = found[place]
        needs = lacking.get((table.name, place), "")
        if needs and full.verdict is Verdict.NOT_RUN:
            full = replace(full, verdict=Verdict.NEEDS_DATA)
        cells[place] = CellPart(
            cell=cell, anchor="r{}-c{}".format(*places[place]), values=(full, *others), needs=needs,
            command="" if cell.missing else cell_command(table, cell),
        )  # fmt: skip
    return TablePart(table=table, command=table_command(table), cells=cells)


def _numbered(table: Table) -> Iterable[tuple[int, int, Place]]:
    rows = list(dict.fromkeys(row for row, _ in table.cells))
    columns = list(dict.fromkeys(column for _, column in table.cells))
    return ((columns.index(column) + 1, rows.index(row) + 1, (row, column)) for row, column in table.cells)


@dataclass(frozen=True, slots=True)
class _InScope:
    """Cells of tables in one scope. known: task and attention of its runs."""

    scope: Scope
    runs: Runs
    ledger: Ledger
    kept: Mapping[Path, dict[str, Any]]
    known: Set[tuple[str, str]]

    def compose(self, tables: Iterable[Table]) -> None:
        """Composes all that these tables ask for together, which is quicker than one by one."""
        trained = [cell for table in tables for cell in table if cell.trained or cell.chained]
        self.runs.compose(cell for cell in trained if self._possible(cell))
        if self.scope == FULL:
            self.runs.compositions.all([(*_data_words(cell), *self.runs.words) for cell in trained])

    def values(self, table: Table, claimed: set[Path]) -> dict[Place, Value]:
        """Each cell in full scope, elsewhere those that have a value. Folders of its runs are added to `claimed`."""
        possible = {place: cell for place, cell in table.cells.items() if cell.mean or self._possible(cell)}
        ran = {place: self._ran(cell) for place, cell in possible.items() if not (cell.mean or cell.measure)}
        claimed.update(folder for runs in ran.values() for folder in runs)
        facts = {place: content for place, cell in table.cells.items() if (content := self._measured(cell))}
        numbers = {place: facts[place]["value"] for place in facts if not isinstance(facts[place]["value"], str)}
        wanted = possible | {place: table.cells[place] for place in facts}
        shown = self.runs.values(replace(table, cells=wanted), None, numbers)
        return {
            place: value
            for place, cell in table.cells.items()
            if (value := self._value(table, cell, shown.get(place, {}), ran.get(place, {}), facts.get(place))).text
            or self.scope == FULL
        }

    def _possible(self, cell: Cell) -> bool:
        """Whether a run may be a cell's: the last task= and attention= of its words decide, where it has them."""
        chosen = dict(str(word).partition("=")[::2] for word in cell.words)
        task, attention = chosen.get("task"), chosen.get("attention")
        return not cell.measure and any(task in (None, t) and attention in (None, a) for t, a in self.known)

    def _ran(self, cell: Cell) -> dict[Path, Run]:
        if not (cell.trained or cell.chained):
            return {}
        folders = [self.runs.run_of(cell, seed).folder for seed in range(cell.seeds)]
        return {folder: self.ledger.runs[folder] for folder in folders if folder in self.ledger.runs}

    def _measured(self, cell: Cell) -> dict[str, Any] | None:
        """What was measured of a cell. Composed are only cells whose words are those of some measurement."""
        if not cell.measure or cell.missing:
            return None
        words = [*cell.words]
        if not any(c["measure"] == cell.measure and c["words"][: len(words)] == words for c in self.kept.values()):
            return None
        return self.kept.get(measurement_cache.place(cell, self.runs))

    def lacking(self, table: Table) -> dict[Place, str]:
        """What is missing of the data of each cell; a mean lacks what its parts lack."""
        own = {place: needs for place, cell in table.cells.items() if (needs := self.needs(cell))}
        return with_means(table.cells, own)

    def needs(self, cell: Cell) -> str:
        """What is missing of the data of a cell's runs; empty where nothing is.

        Asked with the words that choose data, which many cells share: attentions and models change none.
        """
        if not (cell.trained or cell.chained):
            return ""
        return self.runs.needs(self.runs.job(_data_words(cell), 0)) or ""

    def _value(
        self, table: Table, cell: Cell, values: Mapping[int, float], ran: Mapping[Path, Run], facts: Any
    ) -> Value:
        words = facts["value"] if facts and isinstance(facts["value"], str) else ""
        summary = summarise(values) if values else None
        said = Verdict.NOT_PRINTED if words else cell_verdict(cell, values, self.scope.full)
        return Value(
            scope=self.scope, verdict=said, text=summary.text(cell.digits) if summary else words, values=values,
            summary=summary, runs=tuple(ran.values()), floors=_floors(cell, ran.values()), facts=_facts(facts),
        )  # fmt: skip


def _data_words(cell: Cell) -> tuple[str, ...]:
    return tuple(word for word in cell.words if word.startswith(_DATA_WORDS))


def _floors(cell: Cell, ran: Iterable[Run]) -> dict[str, float]:
    """Scores that need no model, of the last run: they are those of the metric that picks the best epoch."""
    floors: dict[str, float] = {}
    for run in ran:
        if cell.metric.name == f"test/{run.monitor}":
            floors |= {name: score * cell.metric.times for name, score in run.record.baselines.items()}
    return floors


def _facts(content: Mapping[str, Any] | None) -> dict[str, str]:
    """Of a measurement: where, when and with what, and how where that is not as asked for."""
    if content is None:
        return {}
    machine, versions = content.get("machine") or {}, content.get("versions") or {}
    return {
        "machine": str(machine.get("gpu") or machine.get("cpu") or ""), "torch": str(versions.get("torch", "")),
        "commit": str(content.get("commit", "")), "measured": str(content.get("finished", "")),
        "note": str(content.get("note", "")),
    }  # fmt: skip
