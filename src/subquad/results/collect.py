"""From the outputs folder and configs/table/ to the results of tables: each cell with the runs that fill it."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from subquad import records
from subquad.config.choices import file_of, hint, options
from subquad.config.compositions import Compositions
from subquad.config.mechanisms import choice_of
from subquad.config.task_metadata import chosen
from subquad.records import Measurement
from subquad.results import added_rows, measurement_cache
from subquad.results.benches import read_benches
from subquad.results.cells import RunIndex, load_tables, seeds_of
from subquad.results.commands import cell_command, table_command
from subquad.results.mean import mean_values
from subquad.results.model import FULL, PROJECT, CellResult, CellResults, Content, Problem, Run, Scope, TableResults
from subquad.results.scan import Scan, newest, read_measurements, read_run, scan_runs
from subquad.results.statistics import summarise
from subquad.results.store import Store
from subquad.results.table import Cell, Place, Table
from subquad.results.verdict import Verdict, cell_verdict
from subquad.utils.errors import UserError

_DATA_OVERRIDES = ("task=", "experiment=", "recipe=", "data", "limits.")

Progress = Callable[[str], None]
"""Called with the name of each table before its runs are looked up."""


def gather(
    names: Sequence[str], overrides: Sequence[str] = (), progress: Progress = lambda name: None, *, check: bool = True
) -> Content:
    """The results of these tables in every scope, and all runs. `overrides` set paths: paths.outputs=<folder>.

    Tables whose file or overrides are wrong are left out and listed in `broken`. `check` composes all results that the
    project keeps, also of other tables, to find those that are outdated.

    A configuration is composed only for a cell whose task and attention some run of the same scope has, and is
    remembered: without runs nothing is composed, and a second call composes nothing.
    """
    compositions = Compositions()
    outputs = Path(compositions[overrides].outputs)
    scan, store = scan_runs(outputs / "runs"), Store.read()
    measurements, broken = read_measurements(outputs / "measured")
    broken += _unknown_scopes(scan)
    tables, unreadable = load_tables(names)
    tables, wrong = added_rows.add_kept(tables, outputs)
    with suppress(UserError):  # of one; what asks for it finds out which
        compositions.all(
            [(*data, *overrides) for table in tables for cell in table for data in _data(cell)]
            + [result.overrides for result in store.results if check]
        )
    outdated = store.outdated(compositions) if check else []
    found: dict[str, list[Mapping[Place, CellResult]]] = {table.name: [] for table in tables}
    scopes = [FULL, *_scopes(scan.runs.values(), measurements.values(), FULL)]
    scopes += _scopes(store.pages.values(), store.measurements.values(), PROJECT)
    for scope in scopes:
        runs = RunIndex([*scope.choices, *overrides], compositions)
        if scope.project:
            collector = _of_project(store, runs, scope)
        else:
            collector = Collector(
                scope=scope, runs=runs, read=scan.runs.get, known=_known(scan.runs.values(), scope),
                measured=partial(measurement_cache.find, measurements, runs),
            )  # fmt: skip
        with suppress(UserError):  # of a table; the loop finds out which
            collector.compose(tables)
        for table in tables:
            progress(table.name)
            try:
                found[table.name].append(collector.results(table))
            except UserError as error:
                unreadable[table.name] = str(error)
    results = [_table_results(table, found[table.name]) for table in tables if table.name not in unreadable]
    files = {name: str(file_of("table", name)) for name in unreadable}
    broken += [
        Problem(path=files[name], message=text.removeprefix(f"{files[name]} ")) for name, text in unreadable.items()
    ]
    in_tables = {run.key for table in results for cell in table.cells.values() for r in cell.results for run in r.runs}
    compositions.save()
    return Content(
        tables=results, runs=list(scan.runs.values()),
        own=[run for run in scan.runs.values() if run.key not in in_tables],
        project=list(store.pages.values()), outdated=outdated,
        broken=[*scan.broken, *broken, *wrong, *store.broken], failed=scan.failed, unfinished=scan.unfinished,
        pictures=sorted((outputs / "figures").rglob("*.png")), benches=newest(outputs / "bench", "*/index.html", 5),
        made=records.now(), project_benches=read_benches(),
        comparisons=newest(outputs / "compare", "**/index.html", 20),
    )  # fmt: skip


def gather_project() -> tuple[list[TableResults], list[Run]]:
    """All tables with the results of the project (docs/results) alone, and the runs that it keeps.

    Raises UserError if a line of docs/results cannot be read.
    """
    compositions, store = Compositions(), Store.readable()
    tables, _ = load_tables(all_tables())
    found: dict[str, list[Mapping[Place, CellResult]]] = {table.name: [] for table in tables}
    for scope in _scopes(store.pages.values(), store.measurements.values(), PROJECT):
        collector = _of_project(store, RunIndex(scope.choices, compositions), scope)
        collector.compose(tables)
        for table in tables:
            found[table.name].append(collector.results(table))
    compositions.save()
    return [_table_results(table, found[table.name]) for table in tables], list(store.pages.values())


def gather_table(name: str, overrides: Sequence[str] = ()) -> TableResults:
    """The results of one table, as `gather`; raises UserError if its file cannot be used."""
    content = gather([name], overrides, check=False)
    if not content.tables:
        path = str(file_of("table", name))
        raise UserError(next(f"{path}: {problem.message}" for problem in content.broken if problem.path == path))
    return content.tables[0]


def all_tables() -> list[str]:
    """The names of all tables, each paper's in the order of their numbers."""
    return sorted(options("table"), key=lambda name: (name.partition("/")[0], _number(name.partition("/")[2])))


def _number(text: str) -> tuple[int, str]:
    digits, rest = re.fullmatch(r"(\d*)(.*)", text).groups()  # type: ignore[union-attr]
    return (int(digits or 1000), rest)


def _scopes(runs: Iterable[Run], measurements: Iterable[Measurement], like: Scope) -> list[Scope]:
    """Every scope but FULL that a run or a measurement has and that can be composed. like: FULL or PROJECT."""
    found = {run.scope for run in runs}
    found |= {replace(Scope.of(kept.overrides), project=like.project) for kept in measurements}
    found |= {replace(scope, protocol="paper") for scope in found}  # no override: the task's own protocol
    known = (scope for scope in found - {FULL} if not _unknown(scope))
    return sorted(known, key=lambda scope: (scope != like, scope.scale, scope.protocol != "paper", scope))


def _known(runs: Iterable[Run], scope: Scope) -> set[tuple[str, str]]:
    """Task and attention of the runs of a scope, and of other protocols, because a task may have its own default."""
    like = [run for run in runs if scope in (run.scope, replace(run.scope, protocol="paper"))]
    return {(run.record.task, run.record.attention) for run in like}


def _of_project(store: Store, runs: RunIndex, scope: Scope, seeds: Sequence[int] | None = None) -> "Collector":
    """Collects results of the project in one scope."""
    return Collector(
        scope=scope, runs=runs, seeds=seeds, read=store.run, evaluation=store.evaluation,
        measured=partial(store.measurement, runs), known=_known(store.pages.values(), scope),
    )  # fmt: skip


def _unknown(scope: Scope) -> list[str]:
    """The choices of a scope that have no file in configs/."""
    chosen = {"scale": scope.scale, "protocol": scope.protocol}
    return [f"{group} {name!r}" for group, name in chosen.items() if name not in options(group)]


def _unknown_scopes(scan: Scan) -> list[Problem]:
    """Runs that no table can show, because their scale or protocol is not known here."""
    return [
        Problem(
            path=str(folder / records.RESULT),
            message=f"There is no {' and no '.join(unknown)} in configs/, so this run fills no cell; add the file.",
        )
        for folder, run in scan.runs.items()
        if (unknown := _unknown(run.scope))
    ]


def results_of(
    table: Table, runs: RunIndex, scope: Scope | None = None, seeds: Sequence[int] | None = None,
    measured: Mapping[Place, Measurement] | None = None, failures: Mapping[Place, str] | None = None,
) -> TableResults:  # fmt: skip
    """The results of a table in one scope, and those of the project in the same scope.

    Args:
        table: the table.
        runs: the runs of its cells.
        scope: None for the one that the overrides of `runs` choose.
        seeds: of the runs of both; None for as many as each cell declares.
        measured: measurements of cells that are not trained.
        failures: why other cells could not be measured.
    """
    scope = Scope.of(runs.overrides) if scope is None else scope
    collectors = [
        Collector(
            scope=scope, runs=runs, seeds=seeds, failures=failures or {},
            measured=lambda cell: (measured or {}).get(cell.place),
        ),
        _of_project(Store.read(), runs, replace(scope, project=True), seeds),
    ]  # fmt: skip
    for collector in collectors:
        collector.compose([table])
    return _table_results(table, [collector.results(table) for collector in collectors])


def _table_results(table: Table, scopes: Sequence[Mapping[Place, CellResult]]) -> TableResults:
    """A table with the results of several scopes, by cell."""
    anchors = {place: f"r{row}-c{column}" for column, row, place in _numbered(table)}
    return TableResults(
        table=table,
        command=table_command(table),
        cells={
            place: CellResults(
                cell=cell,
                anchor=anchors[place],
                command="" if cell.unavailable else cell_command(table, cell),
                results=_distinct(results[place] for results in scopes if place in results),
            )
            for place, cell in table.cells.items()
        },
    )


def _distinct(found: Iterable[CellResult]) -> tuple[CellResult, ...]:
    """Without what a scope repeats because its protocol is the default of the task."""
    kept: list[CellResult] = []
    for result in found:
        twins = [other for other in kept if replace(other.scope, protocol=result.scope.protocol) == result.scope]
        if not result.runs or all(other.runs != result.runs for other in twins):
            kept.append(result)
    return tuple(kept)


def _numbered(table: Table) -> Iterator[tuple[int, int, Place]]:
    rows = list(dict.fromkeys(row for row, _ in table.cells))
    columns = list(dict.fromkeys(column for _, column in table.cells))
    return ((columns.index(column) + 1, rows.index(row) + 1, (row, column)) for row, column in table.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Computes the results of tables in one scope.

    Args:
        scope: which runs count.
        runs: the runs of cells in this scope.
        read: the run of a folder, or None if it has not finished; raises UserError if its record is of no use.
        evaluation: the metrics of the run of a folder on changed data, or None.
        measured: the measurement of a cell, or None.
        failures: why cells could not be measured.
        seeds: None for as many as each cell declares.
        known: task and attention of the finished runs; cells that can be none of them are not composed. None: unknown.
    """

    scope: Scope
    runs: RunIndex
    read: Callable[[Path], Run | None] = read_run
    evaluation: Callable[[Path, Mapping[str, Any]], Mapping[str, float] | None] = records.read_evaluation
    measured: Callable[[Cell], Measurement | None]
    failures: Mapping[Place, str] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    known: Set[tuple[str, str]] | None = None
    first: dict[tuple[tuple[str, ...], ...], Run] = field(default_factory=dict)
    """The first run with some data, with whose data those of the other runs are compared."""

    def compose(self, tables: Iterable[Table]) -> None:
        """Composes all that these tables need together, which is quicker than one by one."""
        cells = [cell for table in tables for cell in table if cell.trained]
        self.runs.compose(cell for cell in cells if self._possible(cell))

    def results(self, table: Table) -> dict[Place, CellResult]:
        """The result of each cell; in a scope other than the full one, only of those that have runs or a value."""
        own = {place: self._cell(cell) for place, cell in table.cells.items() if not cell.mean}
        every = {p: self._mean(cell, own) if cell.mean else own[p] for p, cell in table.cells.items()}
        if self.known is None or self.scope == FULL:
            return every
        return {place: result for place, result in every.items() if result.text or result.runs}

    def _cell(self, cell: Cell) -> CellResult:
        if cell.measure and not cell.unavailable:
            return self._measurement(cell)
        if cell.trained and self._possible(cell):
            return self._trained(cell)
        return self._result(cell, {}, missing_data=self._missing_data(cell))

    def _trained(self, cell: Cell) -> CellResult:
        values, runs, unusable = {}, [], []
        for seed in seeds_of(cell, self.seeds):
            folder = self.runs.run_of(cell, seed).folder
            try:
                if (run := self.read(folder)) is None:
                    continue
                runs.append(run)
                first = self.first.setdefault(tuple(_data(cell)), run)
                if run.record.data_fingerprint != first.record.data_fingerprint:
                    raise UserError(f"{folder} was trained on other data than {first.key}; train one of them again.")
                metrics = self.evaluation(folder, cell.eval_data) if cell.eval_data else run.record.metrics
                value = (metrics or {}).get(cell.metric.name)
                if value is None and metrics:
                    name = cell.metric.name
                    raise UserError(f"The record of {folder} has no metric {name}; {hint(name, sorted(metrics))}")
                if value is not None and not math.isfinite(value):
                    raise UserError(f"{cell.metric.name} of the run {folder} is {value}, which no mean can take.")
            except UserError as error:
                unusable.append(str(error))
                continue
            if value is not None:
                values[seed] = value * cell.metric.scale_by
        return self._result(
            cell, values, runs=runs, remarks=unusable, unusable=bool(unusable), baselines=_baselines(cell, runs),
            missing_data="" if values else self._missing_data(cell),
        )  # fmt: skip

    def _measurement(self, cell: Cell) -> CellResult:
        if (found := self.measured(cell)) is None:
            return self._result(cell, {}, remarks=[self.failures[cell.place]] if cell.place in self.failures else [])
        remarks, facts = [found.note] if found.note else [], _facts(found)
        if isinstance(found.value, str):
            verdict = Verdict.NOT_PRINTED
            return CellResult(scope=self.scope, verdict=verdict, text=found.value, measurement=facts, remarks=remarks)
        return self._result(cell, {0: found.value * cell.metric.scale_by}, measurement=facts, remarks=remarks)

    def _mean(self, cell: Cell, parts: Mapping[Place, CellResult]) -> CellResult:
        """The mean of other cells; it lacks the data that the first incomplete one of them lacks."""
        averaged = [parts[part] for part in cell.mean]
        values = mean_values([part.values for part in averaged])
        missing = "" if values else next((part.missing_data for part in averaged if part.missing_data), "")
        stated = all(part.verdict is Verdict.AS_PRINTED for part in averaged)
        return self._result(cell, values, missing_data=missing, stated=stated)

    def _result(
        self, cell: Cell, values: Mapping[int, float], *, missing_data: str = "", stated: bool | None = None,
        **known: Any,
    ) -> CellResult:  # fmt: skip
        summary = summarise(values) if values else None
        verdict = cell_verdict(cell, values, self.scope.full, bool(missing_data), stated)
        return CellResult(
            scope=self.scope, verdict=verdict, values=values,
            text=summary.text(cell.digits) if summary else "", summary=summary, missing_data=missing_data, **known,
        )  # fmt: skip

    def _possible(self, cell: Cell) -> bool:
        """Whether a finished run may be a cell's: the task and the mechanism of its overrides decide, if any."""
        if self.known is None:
            return True
        given = chosen(cell.overrides)
        task, attention, backbone = given.get("task"), given.get("attention"), given.get("backbone", "")
        if given.get("backbone.attention") == "null":
            attention = "none"
        elif choice_of("backbone", backbone) is not None:
            attention = backbone
        return any(task in (None, t) and attention in (None, a) for t, a in self.known)

    def _missing_data(self, cell: Cell) -> str:
        """Which data the cell's runs lack; "" if none.

        With `known`, asked with the overrides that choose data, which many cells share.
        """
        if not cell.trained:
            return ""
        if self.known is None:
            return self.runs.missing_data(self.runs.run_of(cell, 0)) or ""
        if self.scope != FULL:
            return ""
        reasons = (self.runs.missing_data(self.runs.spec(data, 0)) for data in _data(cell))
        return next((reason for reason in reasons if reason), "")


def _data(cell: Cell) -> list[tuple[str, ...]]:
    """The overrides that choose the data of a cell's run, and of the run that it starts from; none without a run."""
    if not cell.trained:
        return []
    return [
        tuple(override for override in overrides if override.startswith(_DATA_OVERRIDES))
        for overrides in (cell.overrides, cell.init_from)
        if overrides
    ]


def _baselines(cell: Cell, runs: Iterable[Run]) -> dict[str, float]:
    """Scores without a model, of the last run, if the cell shows the metric that picks the best epoch.

    They are scores on the run's own test split, so that a cell of other data has none.
    """
    baselines: dict[str, float] = {}
    for run in () if cell.eval_data else runs:
        if cell.metric.name == f"test/{run.monitor}":
            baselines |= {name: score * cell.metric.scale_by for name, score in run.record.baselines.items()}
    return baselines


def _facts(measurement: Measurement) -> dict[str, str]:
    """Where, when and with what a value was measured, and how if not as the table asks."""
    machine, versions = measurement.machine or {}, measurement.versions or {}
    return {
        "machine": str(machine.get("gpu") or machine.get("cpu") or ""), "torch": str(versions.get("torch", "")),
        "commit": str(measurement.commit), "measured": str(measurement.finished), "note": str(measurement.note),
    }  # fmt: skip
