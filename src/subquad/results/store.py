"""The results that the project keeps: docs/results/, one line of JSON for each run and each measurement.

`runs/<task>.jsonl` has the records of runs, each with the overrides that train it and with its evaluations on other
data; `measurements/<function>.jsonl` has measured cells. Lines are sorted, so that a new result is one new line. Each
has a checksum of its values, so that an edit by hand is noticed; overrides may be edited as long as they compose to it.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from subquad import records
from subquad.config.choices import CONFIGS, options
from subquad.config.compositions import Compositions
from subquad.config.fingerprint import NOT_IDENTITY, run_of
from subquad.config.task_metadata import names_files
from subquad.records import Measurement, Record, fingerprint
from subquad.results.cells import RunIndex, load_tables
from subquad.results.measurement_cache import is_of, path_of
from subquad.results.model import Problem, Run, Scope
from subquad.results.scan import given_overrides, read_run
from subquad.results.table import Cell
from subquad.utils.atomic import atomic_write
from subquad.utils.display import CHECKOUT, command_line
from subquad.utils.errors import UserError

FOLDER = CHECKOUT / "docs" / "results" if CHECKOUT else CONFIGS.parent / "store"
"""docs/results/ of a checkout, or the installed package subquad.store."""

_Line = TypeVar("_Line", "StoredRun", "StoredMeasurement")


@dataclass(frozen=True, kw_only=True)
class StoredRun(Record):
    """A record with its evaluations on other data.

    overrides: those that determine the result. config: only the keys that pages read; the overrides give the others.
    evaluations: metrics by the fingerprint of the changed settings of the data.
    """

    overrides: list[str]
    metrics: dict[str, FiniteFloat]
    evaluations: dict[str, dict[str, FiniteFloat]]
    checksum: str = ""

    @property
    def command(self) -> str:
        """The command that trains the run."""
        return command_line("python train.py", [*self.overrides, f"seed={self.seed}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMeasurement(Measurement):
    """A measurement with its name: the fingerprint of the cell's configuration and of its `measure`."""

    name: str
    checksum: str = ""


@dataclass(frozen=True)
class Store:
    """The results of the project, by name. `broken`: lines that cannot be read."""

    runs: Mapping[str, StoredRun] = field(default_factory=dict)
    measurements: Mapping[str, StoredMeasurement] = field(default_factory=dict)
    broken: Sequence[Problem] = ()

    @classmethod
    def read(cls, folder: Path | None = None) -> "Store":
        """Reads docs/results/ or another folder of this form; empty without one."""
        folder = FOLDER if folder is None else folder
        broken: list[Problem] = []
        runs = _lines(folder / "runs", StoredRun, broken)
        measurements = _lines(folder / "measurements", StoredMeasurement, broken)
        return cls({run.name: run for run in runs}, {kept.name: kept for kept in measurements}, broken)

    @classmethod
    def readable(cls) -> "Store":
        """docs/results/; raises UserError if a line of it cannot be read."""
        store = cls.read()
        if store.broken:
            raise UserError(f"{store.broken[0].path}: {store.broken[0].message}")
        return store

    @property
    def results(self) -> tuple["StoredRun | StoredMeasurement", ...]:
        """All of them."""
        return (*self.runs.values(), *self.measurements.values())

    @cached_property
    def pages(self) -> dict[str, Run]:
        """The runs as views show them, by name, oldest first."""
        return {
            run.name: Run(
                key=f"project/{run.task}/{run.attention}/{run.name}", record=run, command=run.command, project=True
            )
            for run in sorted(self.runs.values(), key=lambda run: run.finished)
        }

    def run(self, folder: Path) -> Run | None:
        """The run that has this folder in outputs/."""
        return self.pages.get(folder.name)

    def evaluation(self, folder: Path, changes: Mapping[str, Any]) -> Mapping[str, float] | None:
        """The metrics of a run on changed data."""
        return self.runs[folder.name].evaluations.get(fingerprint(changes))

    def measurement(self, runs: RunIndex, cell: Cell) -> Measurement | None:
        """The measurement of a cell. Composes a cell only if some measurement has its overrides and scope."""
        scope = Scope.of([*cell.overrides, *runs.overrides])
        if (scope, _measured(cell.measure, cell.overrides)) not in self._measured:
            return None
        return self.measurements.get(path_of(cell, runs).stem)

    @cached_property
    def _measured(self) -> set[tuple[Scope, str]]:
        return {
            (Scope.of(kept.overrides), _measured(kept.measure, kept.overrides)) for kept in self.measurements.values()
        }

    def outdated(self, compositions: Compositions) -> list[Problem]:
        """Results that are not what their overrides compose to today, and measurements that fill no cell."""
        problems: list[Problem] = []
        data: dict[str, str] = {}
        with suppress(UserError):  # of one result; the loop finds out which
            compositions.all([result.overrides for result in self.results])
        for result in self.results:
            try:
                reason = _outdated(result, compositions)
                if isinstance(result, StoredRun) and not reason:
                    first = data.setdefault(result.fingerprint, result.data_fingerprint)
                    reason = "" if result.data_fingerprint == first else "another seed has other data"
            except UserError as error:
                reason = str(error)
            if reason:
                text = f"{' '.join(result.overrides)}: {reason}; measure it again, or remove the line."
                problems.append(Problem(path=f"{_file(result)}: {result.name}", message=text))
        return problems

    def with_results(self, runs: Iterable[StoredRun] = (), measurements: Iterable[StoredMeasurement] = ()) -> "Store":
        """This store with more results, which replace those of the same name."""
        return Store(
            {**self.runs, **{run.name: run for run in runs}},
            {**self.measurements, **{kept.name: kept for kept in measurements}},
        )

    def write(self, folder: Path | None = None) -> None:
        """Writes all files; results of one file are sorted by overrides and seed."""
        folder = FOLDER if folder is None else folder
        files: dict[str, list[Any]] = {}
        for result in self.results:
            files.setdefault(_file(result), []).append(result)
        for name, results in files.items():
            results.sort(
                key=lambda result: (result.overrides, _measured(getattr(result, "measure", {}), ()), result.name)
            )
            with atomic_write(folder / name) as place:
                place.write_text("".join(f"{_line(result)}\n" for result in results), encoding="utf-8")


def stored_run(folder: Path, compositions: Compositions) -> StoredRun:
    """The finished run of a folder, for the store.

    Raises UserError if the run has not finished, if its data are synthetic, if a metric is not finite, if its source
    had changes that no commit has, or if its overrides do not compose to it.
    """
    if (run := read_run(folder)) is None:
        raise UserError(f"{folder} has no {records.RESULT}: the run has not finished.")
    record = run.record
    check_source(folder, record.commit)
    if run.scope.synthetic:
        raise UserError(f"{folder} was trained on synthetic data, which are no result.")
    if own := [*record.config.get("code", {}), *(["files of yours"] if names_files(record.config["data"]) else [])]:
        raise UserError(f"{folder} was trained with {own[0]}, which nobody else has, so that nobody can repeat it.")
    trainer, task = record.config["trainer"], record.config["task"]
    config = {
        "task": {"monitor": task["monitor"], "module": {}}, "data": {"synthetic": False},
        "trainer": {key: trainer[key] for key in ("devices", "num_nodes", "precision")},
    }  # fmt: skip
    evaluations = {}
    for path in sorted((folder / records.EVALUATIONS).glob("*.json")):
        if (evaluation := records.read_evaluation_file(folder, path)) is not None:
            check_source(path, evaluation.commit)
            evaluations[path.stem] = evaluation.metrics
    every = [item for metrics in (record.metrics, *evaluations.values()) for item in metrics.items()]
    if wrong := [f"{name} of {folder} is {value}" for name, value in every if not math.isfinite(value)]:
        raise UserError(f"{wrong[0]}, which is no result.")
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(Record)} | {
        "config": config, "tags": [], "files": {}, "overrides": _overrides(folder, record, compositions),
    }  # fmt: skip
    stored = StoredRun(**fields, evaluations=evaluations)
    if _today(stored, compositions) != stored.name:
        raise UserError(
            f"{folder} is a run of another configuration: its overrides compose to another fingerprint today; train it "
            "again with this version."
        )
    if reason := _outdated(stored, compositions):
        raise UserError(f"{folder} is no result for others: {reason}.")
    return stored


def stored_measurement(path: Path, compositions: Compositions) -> StoredMeasurement:
    """The measurement of a file below outputs/measured, for the store.

    Raises UserError if it cannot be read, if its source had changes that no commit has, if its overrides do not compose
    to it, or if it is no cell's.
    """
    kept = records.read_measurement(path)
    if kept is None:
        raise UserError(f"There is no file {path}.")
    check_source(path, kept.commit)
    fields = {f.name: getattr(kept, f.name) for f in dataclasses.fields(Measurement)}
    stored = StoredMeasurement(**fields, name=path.stem)
    if _today(stored, compositions) != stored.name:
        raise UserError(f"{path} is a measurement of another configuration; measure it again with this version.")
    if not _fills_a_cell(stored):
        raise UserError(f"{path} is a measurement that no cell of a table asks for.")
    return stored


def _can_be_looked_up(commit: str) -> bool:
    return commit.isalnum() and commit != "unknown"


def check_source(path: Path, commit: str) -> None:
    """Raises UserError if a result was made by a source that nobody can look up."""
    if not _can_be_looked_up(commit):
        raise UserError(
            f"{path} was made by the source {commit}, which nobody can look up; run it again in a clean checkout."
        )


def _overrides(folder: Path, record: Record, compositions: Compositions) -> list[str]:
    """The overrides of a run without those that do not determine its result: its seed, paths, hardware, logging."""
    given = given_overrides(folder, record)
    if not given:
        raise UserError(f"{folder} does not say with which overrides it was trained, so nobody can repeat this run.")
    kept = [_portable(override) for override in given if not override.startswith("seed=")]
    for override in [override for override in kept if _may_be_left_out(override)]:
        others = [other for other in kept if other != override]
        if compositions[others].identity == compositions[kept].identity:
            kept = others
    return kept


def _portable(override: str) -> str:
    """An override with the path of another run's weights below the folder outputs, wherever that is here."""
    key, _, value = override.partition("=")
    path = Path(value.strip("'\""))
    if key != "ckpt_path" or run_of(path) is None or "runs" not in path.parts:
        return override
    return f"{key}={Path('outputs', *path.parts[path.parts.index('runs') :])}"


def _may_be_left_out(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    group, _, rest = key.partition(".")
    return group in ("paths", "logger", "trainer", "tags", "sweep", "evaluate", "hydra") or (
        rest.partition(".")[0] in NOT_IDENTITY.get(group, ())
    )


def _today(result: StoredRun | StoredMeasurement, compositions: Compositions) -> str:
    """The name that a result would have today."""
    composition = compositions[result.overrides]
    if isinstance(result, StoredRun):
        return records.run_name(fingerprint(composition.identity), result.seed)
    return fingerprint({"config": composition.identity, "measure": result.measure})


def _outdated(result: StoredRun | StoredMeasurement, compositions: Compositions) -> str:
    """Why a result does not count today; empty if it does."""
    if _today(result, compositions) != result.name:
        return "its overrides compose to another configuration today"
    if not _can_be_looked_up(result.commit):
        return f"nobody can look up its source {result.commit}"
    if isinstance(result, StoredMeasurement):
        return "" if _fills_a_cell(result) else "no cell of a table is measured like that"
    composition = compositions[result.overrides]
    if composition.data.get("synthetic"):
        return "its data are synthetic"
    task = Path(composition.folder).parent.parent.relative_to(Path(composition.outputs) / "runs").as_posix()
    composed = {key: composition.identity[key] for key in ("scale", "protocol")}
    for key, value in ({"task": task, "attention": composition.attention} | composed).items():
        if getattr(result, key) != value:
            return f"its {key} is {getattr(result, key)}, by its overrides {value}"
    return "" if f"test/{result.monitor}" in result.metrics else f"it has no test/{result.monitor}"


def _fills_a_cell(kept: StoredMeasurement) -> bool:
    return any(is_of(kept, cell) for cell in _measured_cells())


@cache
def _measured_cells() -> list[Cell]:
    return [cell for table in load_tables(options("table"))[0] for cell in table if cell.measure]


def _file(result: StoredRun | StoredMeasurement) -> str:
    """The path of a result's file in the folder."""
    if isinstance(result, StoredRun):
        return f"runs/{result.task}.jsonl"
    return f"measurements/{str(result.measure['_target_']).rpartition('.')[2]}.jsonl"


def _plain(result: StoredRun | StoredMeasurement) -> dict[str, Any]:
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name not in ("files", "checksum")}


def _line(result: StoredRun | StoredMeasurement) -> str:
    content = json.loads(json.dumps(_plain(result)))
    return json.dumps(content | {"checksum": _checksum(content)}, ensure_ascii=False, sort_keys=True)


def _checksum(content: Mapping[str, Any]) -> str:
    return fingerprint({key: value for key, value in content.items() if key not in ("checksum", "overrides")})


def _measured(measure: Mapping[str, Any], overrides: Sequence[str]) -> str:
    return json.dumps([dict(measure), list(overrides)], sort_keys=True, default=str)


def _lines(folder: Path, kind: type[_Line], broken: list[Problem]) -> list[_Line]:
    """The lines of all files below a folder; those that do not fit, or repeat a name, are added to `broken`."""
    schema, found = TypeAdapter(kind), dict[str, _Line]()
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            message = f"it cannot be read ({error.strerror}); mend it, or take it from the repository again."
            broken.append(Problem(path=str(path), message=message))
            continue
        for number, line in enumerate(lines, start=1):
            try:
                result, text = schema.validate_json(line), ""
                if result.name in found:
                    text = f"{result.name} is kept twice"
                elif result.checksum != _checksum(json.loads(line)):
                    text = f"{result.name} has values that do not fit its checksum"
                else:
                    found[result.name] = result
            except ValidationError as error:
                first = error.errors(include_input=False)[0]
                text = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
            if text:
                broken.append(Problem(path=f"{path}, line {number}", message=f"{text}; mend or remove this line."))
    return list(found.values())
