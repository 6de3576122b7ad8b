"""From the outputs folder and configs/table/ to the results of tables: each cell with the runs that fill it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from subquad import records
from subquad.config.choices import file_of, options
from subquad.config.compositions import Compositions
from subquad.records import Measurement
from subquad.results import added_rows, measurement_cache
from subquad.results.benches import read_benches
from subquad.results.cell_results import Collector, data_of, mixed_precisions
from subquad.results.cells import PRECISION, RunIndex, load_tables
from subquad.results.commands import cell_command, table_command
from subquad.results.model import (
    FULL,
    PROJECT,
    CellResult,
    CellResults,
    Content,
    Problem,
    Run,
    Scope,
    TableResults,
)
from subquad.results.scan import Scan, newest, read_measurements, scan_runs
from subquad.results.store import Store
from subquad.results.table import Place, Table
from subquad.utils.errors import UserError

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
            [(*data, *overrides) for table in tables for cell in table for data in data_of(cell)]
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
                precisions=mixed_precisions(scan.runs.values()),
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


def _of_project(store: Store, runs: RunIndex, scope: Scope, seeds: Sequence[int] | None = None) -> Collector:
    """Collects results of the project in one scope."""
    return Collector(
        scope=scope, runs=runs, seeds=seeds, read=store.run, evaluation=store.evaluation,
        measured=partial(store.measurement, runs), known=_known(store.pages.values(), scope),
        precisions=mixed_precisions(store.pages.values()),
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
    in_any_precision = RunIndex([o for o in runs.overrides if not o.startswith(PRECISION)], runs.compositions)
    collectors = [
        Collector(
            scope=scope, runs=runs, seeds=seeds, failures=failures or {},
            measured=lambda cell: (measured or {}).get(cell.place),
        ),
        _of_project(Store.read(), in_any_precision, replace(scope, project=True), seeds),
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
