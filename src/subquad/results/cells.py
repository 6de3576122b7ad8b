"""The runs behind the cells of a table: what each trains, and which have finished."""

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from subquad import records
from subquad.config.choices import file_of, hint, options
from subquad.config.compositions import Composition, Compositions
from subquad.config.overrides import as_override
from subquad.results import table as tables
from subquad.results.missing_data import missing_data
from subquad.results.table import Cell, Place, Table
from subquad.utils.errors import UserError

PRECISION = "trainer.precision="
"""An override that makes another run at the same scale."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: its overrides, the folder of its record, and the runs and evaluations that belong to it.

    init_from: the run whose best weights it starts from. evaluations: settings of the data, if they differ from those
    of training, on which its own best weights are evaluated.
    """

    overrides: tuple[str, ...]
    folder: Path
    init_from: "RunSpec | None" = None
    evaluations: tuple[Mapping[str, Any], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the record, which is written last, and all evaluations exist."""
        return records.complete(self.folder, self.evaluations)

    @property
    def command(self) -> tuple[str, ...]:
        """The overrides of train.py that train and evaluate it."""
        changes = ",".join(as_override(dict(evaluation)) for evaluation in self.evaluations)
        return (*self.overrides, f"evaluate=[{changes}]") if changes else self.overrides


def load_table(name: str) -> Table:
    """The table of the file table/<name>.yaml; raises UserError if there is none."""
    if (file := file_of("table", name)) is None:
        raise UserError(f'There is no table "{name}"; {hint(name, options("table"))}')
    state = file.stat()
    return _loaded(file, name, state.st_mtime_ns, state.st_ctime_ns, state.st_size)


@cache
def _loaded(file: Path, name: str, *state: int) -> Table:
    """The table of a file in this state. Tables are not changed, and commands ask for all of them several times."""
    return tables.load(file, name)


def load_tables(names: Iterable[str]) -> tuple[list[Table], dict[str, str]]:
    """The tables that can be read, and by name the reasons why the others cannot."""
    found, unreadable = [], {}
    for name in names:
        try:
            found.append(load_table(name))
        except UserError as error:
            unreadable[name] = str(error)
    return found, unreadable


def select(found: Sequence[Table], rows: Sequence[str], columns: Sequence[str]) -> list[Table]:
    """These rows and columns of tables. Of several, each gives what it has, and those that have nothing are left out.

    Names may be patterns of fnmatch and of other case. Raises UserError at a name that none of them has.
    """
    row_names = [row.name for table in found for row in table.rows]
    column_names = [column.name for table in found for column in table.columns]
    rows, columns = _matched(rows, row_names, column_names), _matched(columns, column_names, row_names)
    if len(found) == 1:
        return [found[0].select(rows, columns)]
    names = [{line.name for line in (*table.rows, *table.columns)} for table in found]
    if unknown := [name for name in (*rows, *columns) if not any(name in known for known in names)]:
        raise UserError(
            f"None of the tables has {', '.join(unknown)}; their rows and columns are "
            f"{', '.join(sorted(set.union(*names)))}."
        )
    chosen = []
    for table, known in zip(found, names, strict=True):
        kept = [[name for name in given if name in known] for given in (rows, columns)]
        if all(own or not given for own, given in zip(kept, (rows, columns), strict=True)):
            chosen.append(table.select(*kept))
    return chosen


def _matched(names: Sequence[str], own: Sequence[str], other: Sequence[str]) -> list[str]:
    """The names, and in place of a pattern those of its own axis that it matches, or else of the other."""
    found = [[n] if n in own else _like(n, own) or _like(n, other) or [n] for n in names]
    return list(dict.fromkeys(name for matches in found for name in matches))


def _like(pattern: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if fnmatch.fnmatchcase(name.lower(), pattern.lower())]


class RunIndex:
    """The runs behind cells, at one scale and on one kind of data.

    `overrides` are those that every run gets beside its cell's: scale=laptop, data=synthetic. A cell's own `limits.`
    are those of full scale.
    """

    def __init__(self, overrides: Sequence[str] = (), compositions: Compositions | None = None) -> None:
        self.overrides = tuple(overrides)
        self.compositions = Compositions() if compositions is None else compositions

    def spec(self, overrides: Iterable[str], seed: int) -> RunSpec:
        """The run of these overrides and a seed."""
        every = (*overrides, *self.overrides)
        return RunSpec((*every, f"seed={seed}"), Path(f"{self.compositions[every].folder}-s{seed}"))

    def compose(self, cells: Iterable[Cell], meanwhile: Callable[[], None] | None = None) -> None:
        """Composes the runs of these cells together, which is quicker than one by one; meanwhile: see `spread`.

        Raises UserError for overrides that do not compose, with the place of the cell if others do compose.
        """
        every = [(cell.place, self._all_overrides(cell)) for cell in cells]
        try:
            self.compositions.all([overrides for _, runs in every for overrides in runs], meanwhile)
        except (UserError, SystemExit):
            self._name_cell(every)
            raise

    def _all_overrides(self, cell: Cell) -> list[tuple[str, ...]]:
        """Those of its run and of the one that it starts from."""
        return [(*self._own(own), *self.overrides) for own in (cell.init_from, cell.overrides) if own]

    def _name_cell(self, every: Iterable[tuple[Place, Sequence[Sequence[str]]]]) -> None:
        wrong, others = "", False
        for (row, column), overrides in every:
            try:
                self.compositions.all(overrides)
                others = True
            except (UserError, SystemExit) as error:
                wrong = wrong or f"Row {row}, column {column}: {error}"
            if wrong and others:
                raise UserError(wrong) from None

    def composition(self, cell: Cell) -> Composition:
        """The composed configuration of a cell."""
        return self.compositions[*self._own(cell.overrides), *self.overrides]

    def _own(self, of_cell: Iterable[str]) -> tuple[str, ...]:
        smaller = any(text.startswith("scale=") and text != "scale=paper" for text in self.overrides)
        return tuple(text for text in of_cell if not (smaller and text.startswith("limits.")))

    def run_of(self, cell: Cell, seed: int, precision: str = "") -> RunSpec:
        """The run that fills a trained or chained cell, in mixed precision if one is given and the cell is trained.

        The run that it starts from has seed 0, whatever its own seed is: papers train a model that others start from
        once.
        """
        evaluations = (cell.eval_data,) if cell.eval_data else ()
        if not cell.init_from:
            mixed = (f"{PRECISION}{precision}",) if precision else ()
            return replace(self.spec((*self._own(cell.overrides), *mixed), seed), evaluations=evaluations)
        first = self.spec(self._own(cell.init_from), 0)
        weights = as_override(str(first.folder / records.BEST))
        run = self.spec((*self._own(cell.overrides), f"ckpt_path={weights}"), seed)
        return replace(run, init_from=first, evaluations=evaluations)

    def specs(self, table: Table, seeds: Sequence[int] | None) -> list[RunSpec]:
        """Every run that a trained or chained cell needs, once, and each after the one that it starts from.

        seeds: None for as many as each cell declares.

        Seed by seed, so that each cell soon has a first number. A finished run's `init_from` is left out.
        """
        cells = [cell for cell in table if cell.trained]
        self.compose(cells)
        every = sorted({seed for cell in cells for seed in seeds_of(cell, seeds)}) if seeds is None else seeds
        return merged(self.run_of(cell, seed) for seed in every for cell in cells if seed in seeds_of(cell, seeds))

    def cells(self, table: Table, seeds: Sequence[int] | None) -> dict[Place, list[RunSpec]]:
        """The runs of each trained or chained cell. seeds: None for as many as each cell declares."""
        filled = {place: cell for place, cell in table.cells.items() if cell.trained}
        self.compose(filled.values())
        return {place: [self.run_of(c, seed) for seed in seeds_of(c, seeds)] for place, c in filled.items()}

    def missing_data(self, run: RunSpec) -> str | None:
        """Which data a run, or the one that it starts from, lacks; see `subquad.results.missing_data`."""
        settings = self.compositions[run.overrides[:-1]].data
        key = json.dumps(settings, sort_keys=True)
        if key not in self._missing:
            try:
                self._missing[key] = missing_data(settings)
            except UserError as error:
                raise UserError(f"{' '.join(run.overrides)}: {error}") from None
        return self._missing[key] or (None if run.init_from is None else self.missing_data(run.init_from))

    @cached_property
    def _missing(self) -> dict[str, str | None]:
        return {}


def seeds_of(cell: Cell, seeds: Sequence[int] | None) -> Sequence[int]:
    """These seeds; None: as many as the cell declares."""
    return range(cell.first_seed, cell.first_seed + cell.seeds) if seeds is None else seeds


def merged(runs: Iterable[RunSpec]) -> list[RunSpec]:
    """Each run once, with all its evaluations; an unfinished run comes after the one that it starts from."""
    found: dict[Path, RunSpec] = {}
    for run in runs:
        known = found.get(run.folder, run)
        every = {json.dumps(dict(c), sort_keys=True): c for c in (*known.evaluations, *run.evaluations)}
        complete = replace(run, evaluations=tuple(every.values()))
        if complete.init_from is not None and not complete.finished:
            found.setdefault(complete.init_from.folder, complete.init_from)
        found[run.folder] = complete
    return list(found.values())
