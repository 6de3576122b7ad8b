"""From the cells of a table to runs: what each would train, which of it has finished, what came out."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from subquad import records
from subquad.errors import UserError
from subquad.run.doors import CONFIGS, compose_run, options
from subquad.tables import table as tables
from subquad.tables.mean import mean_values
from subquad.tables.table import Cell, Table

Place = tuple[str, str]
"""Row and column of a cell."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: the words that train it and the folder that its record will be in."""

    words: tuple[str, ...]
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the record is there; it is written last."""
        return (self.folder / records.RESULT).exists()


def load_table(name: str) -> Table:
    """configs/table/<name>.yaml; raises UserError where there is none."""
    if name not in (known := options("table")):
        raise UserError(f'There is no table "{name}"; the tables are {", ".join(known)}.')
    return tables.load(CONFIGS / "table" / f"{name}.yaml", name)


class Runs:
    """The runs behind cells, at one scale and on one kind of data.

    `words` are those that every run gets beside its cell's: scale=laptop, data=standin. Composing a configuration takes
    a tenth of a second, so where its run belongs is remembered, for as long as no file of configs/ changes.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = tuple(words)

    def job(self, words: Iterable[str], seed: int) -> Job:
        """The run of a cell's words and a seed."""
        every = (*words, *self.words)
        return Job((*every, f"seed={seed}"), self._folder(every).with_name(f"{self._folder(every).name}-s{seed}"))

    def jobs(self, table: Table, seeds: Iterable[int]) -> list[Job]:
        """Every run that a trained cell needs, once, seed by seed, so that each cell soon has a first number."""
        found: dict[Path, Job] = {}
        for seed in seeds:
            for cell in table:
                if cell.trained:
                    job = self.job(cell.words, seed)
                    found.setdefault(job.folder, job)
        return list(found.values())

    def values(
        self, table: Table, seeds: Iterable[int], measured: Mapping[Place, float]
    ) -> dict[Place, dict[int, float]]:
        """What each cell shows, by seed and in the unit of the table; empty where nothing is known.

        Means take the seeds that all of their cells have. `measured` are the values of the cells that are not trained.
        """
        chosen = tuple(seeds)
        values: dict[Place, dict[int, float]] = {}
        for place, cell in table.cells.items():
            if cell.trained:
                values[place] = self._trained(cell, chosen)
            elif place in measured:
                values[place] = {0: measured[place] * cell.metric.times}
        for place, cell in table.cells.items():
            if cell.mean:
                values[place] = mean_values([values.get(part, {}) for part in cell.mean])
        return {place: values.get(place, {}) for place in table.cells}

    def _trained(self, cell: Cell, seeds: Iterable[int]) -> dict[int, float]:
        found = {}
        for seed in seeds:
            record = records.read(self.job(cell.words, seed).folder)
            if record is not None and cell.metric.name in record.metrics:
                found[seed] = record.metrics[cell.metric.name] * cell.metric.times
        return found

    def _folder(self, words: tuple[str, ...]) -> Path:
        """The run's folder without its seed."""
        key = " ".join(words)
        if key not in self._known:
            folder = str(compose_run([*words, "seed=0"]).paths.run)
            self._known[key] = folder.removesuffix("-s0")
        return Path(self._known[key])

    @cached_property
    def _known(self) -> dict[str, str]:
        try:
            state, known = json.loads(self._memory.read_text())
        except (OSError, ValueError):
            return {}
        return dict(known) if state == _state() else {}

    @cached_property
    def _memory(self) -> Path:
        return Path(str(compose_run([]).paths.outputs)) / ".cells.json"

    def remember(self) -> None:
        """Keeps the folders for the next program."""
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        staging = self._memory.with_suffix(f".{os.getpid()}")
        staging.write_text(json.dumps([_state(), self._known]))
        os.replace(staging, self._memory)


def _state() -> str:
    """What the folders of runs depend on: all files of configs/ and the variables that move folders."""
    digest = hashlib.sha256(
        str((Path.cwd(), os.environ.get("SUBQUAD_OUTPUTS"), os.environ.get("SUBQUAD_DATA"))).encode()
    )
    for path in sorted(CONFIGS.rglob("*.yaml")):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()
