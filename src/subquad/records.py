"""Reads and writes the records of runs, evaluations and measurements; all are checked against a schema.

Each file carries a checksum and the name of what it belongs to. The record of a run has the size and hash of the run's
other files. A file that is damaged, or lies where it does not belong, is refused.
"""

import csv
import dataclasses
import datetime
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic_core import from_json

from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError

RESULT, ERROR, EVALUATIONS, HISTORY = "result.json", "error.json", "evaluations", "metrics.csv"
BEST, LAST = "checkpoints/best.ckpt", "checkpoints/last.ckpt"

FOLDER = re.compile(r"[0-9a-f]{12}-s\d+")
"""The name of a run's folder: its fingerprint and its seed."""

_Kind = TypeVar("_Kind")
_STRICT = ConfigDict(extra="forbid", strict=True)
_CHECKSUM, _OWNER = "checksum", "belongs_to"
"""Keys that files have besides the fields of their class."""


def having(kinds: Mapping[str, type | tuple[type, ...]]) -> AfterValidator:
    """A validator that requires keys of a mapping, nested ones with dots, and the types of their values."""

    def check(mapping: dict[str, Any]) -> dict[str, Any]:
        for key, kind in kinds.items():
            value: Any = mapping
            for name in key.split("."):
                if not isinstance(value, dict) or name not in value:
                    raise ValueError(f"it has no {key}")
                value = value[name]
            if not isinstance(value, kind):
                raise ValueError(f"{key} is {value!r:.40}")
        return mapping

    return AfterValidator(check)


def _iso(text: str) -> str:
    datetime.datetime.fromisoformat(text)
    return text


_Amount = Annotated[FiniteFloat, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]
_Time = Annotated[str, AfterValidator(_iso)]
_Machine = Annotated[
    dict[str, Any],
    having({"cpu": str, "cores": int, "threads": int, "gpu": (str, type(None)), "system": str}),
]
_Config = Annotated[
    dict[str, Any],
    having(
        {
            "task.monitor": str, "task.module": dict, "data": dict, "trainer.devices": object,
            "trainer.num_nodes": object, "trainer.precision": object,
        }
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class File:
    """Size in bytes and sha256 of a file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "File":
        """Those of a file as it is now."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run. Exists on disk if and only if the run finished.

    attention: the choice of attention, or of the backbone where the backbone takes no attention (s4, tlb).
    metrics: values by name (accuracy is a fraction in [0, 1]): the metric that picked the best epoch is of that epoch,
    other ones of training and validation are of the last. baselines: trivial scores on the test split, by name.
    wall_seconds: time of training and testing, summed over all restarts. rows: how many each split has. runtime: how
    torch computed, with the values that `auto` stood for. files: the checkpoints and the history that the run ended
    with, by their paths in its folder. overrides: the command line of the run; empty where Hydra did not start it.
    These four are empty in records of earlier versions.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    fingerprint: str
    seed: _Count
    task: str
    attention: str
    recipe: str
    protocol: str
    scale: str
    metrics: dict[str, float]
    baselines: dict[str, FiniteFloat]
    parameters: _Count
    steps: _Count
    wall_seconds: _Amount
    peak_memory_mib: _Amount
    peak_memory_of: str
    data_fingerprint: str
    tags: list[str]
    machine: _Machine
    versions: dict[str, str]
    commit: str
    finished: _Time
    config: _Config
    rows: dict[str, _Count] = dataclasses.field(default_factory=dict)
    runtime: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: dict[str, File] = dataclasses.field(default_factory=dict)
    overrides: list[str] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return run_name(self.fingerprint, self.seed)

    @property
    def monitor(self) -> str:
        """The name of the metric that picked its best epoch, without the split: accuracy."""
        return str(self.config.get("task", {}).get("monitor", "")).rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured value of a table's cell, a number or a text, with the machine, the versions and the time.

    overrides: those of the cell. note: how it was measured, where that differs from what `measure` requests.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    value: FiniteFloat | str
    measure: Annotated[dict[str, Any], having({"_target_": str})]
    overrides: list[str]
    machine: _Machine
    versions: dict[str, str]
    commit: str
    finished: _Time
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The fields of an evaluation that are read; others are ignored."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)

    metrics: dict[str, float]
    commit: str = "unknown"


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Twelve hex digits that identify a configuration; the order of keys does not matter."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_name(fingerprint: str, seed: int) -> str:
    """The name of a run's folder, which its checkpoints carry."""
    return f"{fingerprint}-s{seed}"


def files_of(run: Path) -> dict[str, File]:
    """The files that a finished run is read from, besides its record."""
    return {name: File.of(run / name) for name in (BEST, LAST, HISTORY) if (run / name).exists()}


def write(record: Record, run: Path) -> None:
    """Writes `result.json` atomically and removes the error of an earlier attempt."""
    write_sealed(run / RESULT, dataclasses.asdict(record), record.name)
    (run / ERROR).unlink(missing_ok=True)


def write_error(message: str, trace: str, run: Path) -> None:
    """Writes the error of a failed run to `error.json`, which is kept until a later attempt succeeds."""
    write_json(run / ERROR, {"message": message, "traceback": trace, "time": now()})


def read_error(run: Path, since: float) -> str | None:
    """The message of `error.json` if it was written at or after `since` (seconds, as `time.time`), else None."""
    path = run / ERROR
    try:
        return json.loads(path.read_text(encoding="utf-8"))["message"] if path.stat().st_mtime >= since else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read(run: Path) -> Record | None:
    """The record of a run directory, or None where the run has not finished.

    Raises UserError when the file is not a record, or is the record of another run.
    """
    path = run / RESULT
    record = _read(path, Record, "a record", "run", owner := _name_of(run))
    if record is not None:
        check_owner(path, record.name, owner, "delete it to run again")
    return record


def only_run(folder: Path) -> tuple[Path, Record]:
    """The finished run in a folder, or the only one below it. Raises UserError if there is none or more than one."""
    found = [path.parent for path in sorted(folder.rglob(RESULT))]
    if len(found) > 1:
        raise UserError(f"{folder} holds {len(found)} finished runs; name one of them, such as {found[0]}.")
    record = read(found[0]) if found else None
    if record is None:
        started = next(folder.rglob(HISTORY), None)
        begun = f"; {started.parent} is not finished, and its training command goes on with it" if started else ""
        raise UserError(f"There is no finished run in {folder}{begun}.")
    return found[0], record


def check_owner(path: Path, owner: str | None, expected: str | None, remedy: str) -> None:
    """Raises UserError if a file belongs to something else than the place where it lies. None: it does not say so."""
    if owner is not None and expected is not None and owner != expected:
        raise UserError(f"{path} belongs to another run or setting ({owner}, not {expected}); {remedy}.")


def check_file(run: Path, record: Record, name: str) -> Path:
    """The path of a file of a finished run; raises UserError if it is missing or is not the one that the run wrote."""
    path, expected = run / name, record.files.get(name)
    try:
        found = None if expected is None and path.exists() else File.of(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); restore it, or delete {run} and train again."
        ) from None
    if found != expected:
        raise UserError(
            f"{path} is not the file that this run ended with (its size or hash differs from {RESULT}); restore it, or "
            f"delete {run} and train again."
        )
    return path


def _name_of(run: Path) -> str | None:
    """The name of the run that a folder is for; None where the folder has been given another name."""
    return run.name if FOLDER.fullmatch(run.name) else None


def evaluation_place(run: Path, changes: Mapping[str, Any]) -> Path:
    """The file with the metrics of a run's best weights on data with changed settings."""
    return run / EVALUATIONS / f"{fingerprint(changes)}.json"


def complete(run: Path, evaluations: Iterable[Mapping[str, Any]] = ()) -> bool:
    """Whether a run has its record, which is written last, and the metrics for all these changes of its data."""
    return (run / RESULT).exists() and all(evaluation_place(run, changes).exists() for changes in evaluations)


def read_evaluation(run: Path, changes: Mapping[str, Any]) -> dict[str, float] | None:
    """The metrics of a run on changed data, or None where it was not evaluated on them.

    Raises UserError when the file is not an evaluation.
    """
    evaluation = read_evaluation_file(run, evaluation_place(run, changes))
    return None if evaluation is None else evaluation.metrics


def read_evaluation_file(run: Path, path: Path) -> Evaluation | None:
    """A file of `evaluations/`, or None without one; raises UserError as `read_evaluation`."""
    return _read(path, Evaluation, "an evaluation", "evaluate", _evaluation_owner(run, path))


def _evaluation_owner(run: Path, path: Path) -> str | None:
    name = _name_of(run)
    return name and f"{name}/{path.stem}"


def read_measurement(path: Path) -> Measurement | None:
    """The measurement in a file, or None without a file; raises UserError when the file is not a measurement."""
    return _read(path, Measurement, "a measurement", "measure", path.stem)


def write_measurement(measurement: Measurement, path: Path) -> None:
    """Writes a measurement atomically."""
    write_sealed(path, dataclasses.asdict(measurement), path.stem)


def _read(path: Path, kind: type[_Kind], name: str, remedy: str, owner: str | None) -> _Kind | None:
    """The content of a file as an instance of a class, or None without a file.

    Raises UserError if it does not fit the class or its checksum, or belongs to something else than `owner`.
    """
    try:
        text = path.read_bytes()
        content = from_json(text)
        if isinstance(content, dict) and _CHECKSUM in content:
            checksum = content.pop(_CHECKSUM)
            if checksum != fingerprint(content):
                raise UserError(f"{path} is damaged (its checksum does not fit); delete it to {remedy} again.")
            check_owner(path, content.pop(_OWNER, None), owner, f"delete it to {remedy} again")
            text = json.dumps(content).encode()
        instance: _Kind = _schema(kind).validate_json(text)
        return instance
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read as {name} ({error.strerror}); mend it, or delete it to {remedy} again."
        ) from None
    except UserError:
        raise
    except ValueError as error:
        raise UserError(
            f"{path} is damaged, or is not {name} of this version ({_reason(error)}); delete it to {remedy} again."
        ) from None


def _reason(error: ValueError) -> str:
    """What is wrong with JSON text that cannot be parsed, or that does not fit a class."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_input=False)[0]
    key = ".".join(map(str, first["loc"]))
    return f"{key}: {first['msg']}" if key else first["msg"]


_schema: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def write_evaluation(
    run: Path, changes: Mapping[str, Any], metrics: Mapping[str, float], facts: Mapping[str, Any]
) -> None:
    """Writes the metrics of a run on changed data, with `facts` (the machine, the versions and the time)."""
    path = evaluation_place(run, changes)
    content = {"changes": dict(changes), "metrics": dict(metrics), **facts}
    write_sealed(path, content, _evaluation_owner(run, path))


def read_all(runs: Path, on_error: Callable[[UserError], object] | None = None) -> list[Record]:
    """The records of all finished runs below a folder, oldest first.

    Args:
        runs: the folder.
        on_error: called with the error of each file that `read` refuses, which is then left out; by default the error
            is raised.
    """
    all_records = []
    for path in sorted(runs.rglob(RESULT)):
        try:
            all_records.append(read(path.parent))
        except UserError as error:
            if on_error is None:
                raise
            on_error(error)
    return sorted((r for r in all_records if r is not None), key=lambda r: r.finished)


def read_curve(run: Path, record: Record) -> dict[int, dict[str, float]]:
    """The history of a finished run; raises UserError if it is not the one that the run ended with."""
    return read_history(check_file(run, record, HISTORY) if HISTORY in record.files else run / HISTORY)


def read_history(path: Path) -> dict[int, dict[str, float]]:
    """The rows of a run's `metrics.csv` by optimiser step; empty without a file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row.pop("step")): {k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)}


def now() -> str:
    """The current time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_sealed(path: Path, content: Mapping[str, Any], owner: str | None) -> None:
    """Writes a JSON object atomically, with the name of what it belongs to and with a checksum."""
    sealed = json.loads(json.dumps({**content, _OWNER: owner}, default=str))
    write_json(path, sealed | {_CHECKSUM: fingerprint(sealed)})


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Writes a JSON file atomically; several processes may write it at once, such as those of a run that fail."""
    with atomic_write(path, several=True) as place, place.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=indent, default=str)
        file.flush()
        os.fsync(file.fileno())
