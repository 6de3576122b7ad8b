"""From the cells of a table to runs: what each would train, which of it has finished, what came out."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from subquad import records
from subquad.config.choices import CONFIGS, hint, options
from subquad.config.compositions import Composition, Compositions
from subquad.results import table as tables
from subquad.results.mean import mean_values
from subquad.results.needs import missing_data
from subquad.results.table import Cell, Place, Table
from subquad.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class Job:
    """One run: the words that train it, the folder of its record, and what goes before and after.

    start: the run whose best weights it starts from. evaluations: settings of the data, other than those of training,
    that its own best weights are evaluated on.
    """

    words: tuple[str, ...]
    folder: Path
    start: "Job | None" = None
    evaluations: tuple[Mapping[str, Any], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the record, which is written last, and all evaluations are there."""
        return records.complete(self.folder, self.evaluations)

    @property
    def command(self) -> tuple[str, ...]:
        """The words of train.py that train it and evaluate it."""
        asked = ",".join(_in_words(dict(changes)) for changes in self.evaluations)
        return (*self.words, f"evaluate=[{asked}]") if asked else self.words


def load_table(name: str) -> Table:
    """configs/table/<name>.yaml; raises UserError where there is none."""
    if name not in (known := options("table")):
        raise UserError(f'There is no table "{name}"; {hint(name, known)}')
    return tables.load(CONFIGS / "table" / f"{name}.yaml", name)


def select(found: Sequence[Table], rows: Sequence[str], columns: Sequence[str]) -> list[Table]:
    """These rows and columns of tables. Of several, each gives what it has, and those that have nothing are left out.

    Raises UserError at a name that none of them has.
    """
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


class Runs:
    """The runs behind cells, at one scale and on one kind of data.

    `words` are those that every run gets beside its cell's: scale=laptop, data=synthetic.
    """

    def __init__(self, words: Sequence[str] = (), compositions: Compositions | None = None) -> None:
        self.words = tuple(words)
        self.compositions = Compositions() if compositions is None else compositions
        self.unusable: dict[str, list[Place]] = {}
        """Why runs that have ended gave no value, and the cells that lack it; `values` fills it."""

    def job(self, words: Iterable[str], seed: int) -> Job:
        """The run of a cell's words and a seed."""
        every = (*words, *self.words)
        return Job((*every, f"seed={seed}"), Path(f"{self.compositions[every].folder}-s{seed}"))

    def compose(self, cells: Iterable[Cell], meanwhile: Callable[[], None] | None = None) -> None:
        """Composes the runs of these cells together, which is quicker than one by one; meanwhile: see `spread`."""
        every = [(*words, *self.words) for cell in cells for words in (cell.start, cell.words) if words]
        self.compositions.all(every, meanwhile)

    def composition(self, cell: Cell) -> Composition:
        """That of a cell's words."""
        return self.compositions[*cell.words, *self.words]

    def run_of(self, cell: Cell, seed: int) -> Job:
        """The run that fills a trained or chained cell.

        What it starts from is trained with seed 0, whatever its own seed is: papers train a model that others start
        from once.
        """
        if not cell.start:
            return replace(self.job(cell.words, seed), evaluations=(cell.changes,) if cell.changes else ())
        start = self.job(cell.start, 0)
        weights = _in_words(str(start.folder / "checkpoints" / "best.ckpt"))
        job = self.job((*cell.words, f"ckpt_path={weights}"), seed)
        return replace(job, start=start, evaluations=(cell.changes,) if cell.changes else ())

    def jobs(self, table: Table, seeds: Sequence[int] | None) -> list[Job]:
        """Every run that a trained or chained cell needs, once, and each after the one that it starts from.

        seeds: None for as many as each cell declares.

        Seed by seed, so that each cell soon has a first number. Starts of runs that have finished are left out.
        """
        cells = [cell for cell in table if cell.trained or cell.chained]
        self.compose(cells)
        every = range(max((cell.seeds for cell in cells), default=0)) if seeds is None else seeds
        return merged(self.run_of(cell, seed) for seed in every for cell in cells if seed in seeds_of(cell, seeds))

    def cells(self, table: Table, seeds: Sequence[int] | None) -> dict[Place, list[Job]]:
        """The runs of each trained or chained cell. seeds: None for as many as each cell declares."""
        filled = {place: cell for place, cell in table.cells.items() if cell.trained or cell.chained}
        self.compose(filled.values())
        return {place: [self.run_of(c, seed) for seed in seeds_of(c, seeds)] for place, c in filled.items()}

    def values(
        self, table: Table, seeds: Sequence[int] | None, measured: Mapping[Place, float]
    ) -> dict[Place, dict[int, float]]:
        """What each cell shows, by seed and in the unit of the table; empty where nothing is known.

        seeds: None for as many as each cell declares; means take those that all of their cells have. measured: values
        of the cells that are not trained.
        A run whose record cannot be read, or holds no finite number, gives none; `unusable` then has the reason.
        """
        self.compose(cell for cell in table if cell.trained or cell.chained)
        values: dict[Place, dict[int, float]] = {}
        for place, cell in table.cells.items():
            if cell.trained or cell.chained:
                values[place] = self._trained(place, cell, seeds_of(cell, seeds))
            elif place in measured:
                values[place] = {0: measured[place] * cell.metric.times}
        for place, cell in table.cells.items():
            if cell.mean:
                values[place] = mean_values([values.get(part, {}) for part in cell.mean])
        return {place: values.get(place, {}) for place in table.cells}

    def _trained(self, place: Place, cell: Cell, seeds: Iterable[int]) -> dict[int, float]:
        found = {}
        for seed in seeds:
            folder = self.run_of(cell, seed).folder
            try:
                value = _metrics(folder, cell).get(cell.metric.name)
                if value is not None and not math.isfinite(value):
                    raise UserError(f"{cell.metric.name} of the run {folder} is {value}, which no mean can take.")
            except UserError as error:
                self.unusable.setdefault(str(error), []).append(place)
                continue
            if value is not None:
                found[seed] = value * cell.metric.times
        return found

    def needs(self, job: Job) -> str | None:
        """What is missing of the data of a run, or of the one that it starts from; see `subquad.results.needs`."""
        known = self.compositions[job.words[:-1]].data
        key = json.dumps(known, sort_keys=True)
        if key not in self._missing:
            self._missing[key] = missing_data(known)
        return self._missing[key] or (None if job.start is None else self.needs(job.start))

    @cached_property
    def _missing(self) -> dict[str, str | None]:
        return {}


def seeds_of(cell: Cell, seeds: Sequence[int] | None) -> Sequence[int]:
    """The asked seeds of a cell: as many as it declares where none are asked."""
    return range(cell.seeds) if seeds is None else seeds


def _metrics(run: Path, cell: Cell) -> Mapping[str, float]:
    """What a run reached on the data that a cell asks for; empty where it has not ended."""
    if cell.changes:
        return records.read_evaluation(run, cell.changes) or {}
    record = records.read(run)
    return {} if record is None else record.metrics


def merged(jobs: Iterable[Job]) -> list[Job]:
    """Each run once, with all evaluations that are asked of it; before a run that has not finished its start."""
    found: dict[Path, Job] = {}
    for job in jobs:
        known = found.get(job.folder, job)
        every = {json.dumps(dict(c), sort_keys=True): c for c in (*known.evaluations, *job.evaluations)}
        whole = replace(job, evaluations=tuple(every.values()))
        if whole.start is not None and not whole.finished:
            found.setdefault(whole.start.folder, whole.start)
        found[job.folder] = whole
    return list(found.values())


def _in_words(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_in_words(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_in_words, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[\w./-]+", value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
