"""Reads and writes the records of runs, evaluations and measurements; all are checked against a schema."""

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

from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError

RESULT, ERROR, EVALUATIONS = "result.json", "error.json", "evaluations"

FOLDER = re.compile(r"[0-9a-f]{12}-s\d+")
"""The name of a run's folder: its fingerprint and its seed."""


_Kind = TypeVar("_Kind")
_STRICT = ConfigDict(extra="forbid", strict=True)


def _having(kinds: Mapping[str, type | tuple[type, ...]]) -> AfterValidator:
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
    _having({"cpu": str, "cores": int, "threads": int, "gpu": (str, type(None)), "system": str}),
]
_Config = Annotated[
    dict[str, Any],
    _having(
        {
            "task.monitor": str, "task.module": dict, "data": dict, "trainer.devices": object,
            "trainer.num_nodes": object, "trainer.precision": object,
        }
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run. Exists on disk if and only if the run finished.

    attention: the choice of attention, or of the backbone where the backbone takes no attention (s4, tlb).
    metrics: values by name (accuracy is a fraction in [0, 1]). baselines: trivial scores on the test split, by name.
    wall_seconds: time of training and testing, summed over all restarts. runtime: how torch computed, with the values
    that `auto` stood for; empty in records of earlier versions.
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
    runtime: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured value of a table's cell, a number or a text, with the machine, the versions and the time.

    overrides: those of the cell. note: how it was measured, where that differs from what `measure` requests.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    value: FiniteFloat | str
    measure: dict[str, Any]
    overrides: list[str]
    machine: _Machine
    versions: dict[str, str]
    commit: str
    finished: _Time
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """The fields of an evaluation that are read; others are ignored."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)

    metrics: dict[str, float]


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Twelve hex digits that identify a configuration; the order of keys does not matter."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write(record: Record, run: Path) -> None:
    """Writes `result.json` atomically and removes the error of an earlier attempt."""
    write_json(run / RESULT, dataclasses.asdict(record))
    (run / ERROR).unlink(missing_ok=True)


def write_error(message: str, trace: str, run: Path) -> None:
    """Writes the error of a failed run to `error.json`, which is kept until a later attempt succeeds."""
    write_json(run / ERROR, {"message": message, "traceback": trace, "time": now()})


def read_error(run: Path, since: float) -> str | None:
    """The message of `error.json` if it was written at or after `since` (seconds, as `time.time`), else None."""
    path = run / ERROR
    try:
        return json.loads(path.read_text())["message"] if path.stat().st_mtime >= since else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def read(run: Path) -> Record | None:
    """The record of a run directory, or None where the run has not finished.

    Raises UserError when the file is not a record, or is the record of another run.
    """
    path = run / RESULT
    record = _read(path, Record, "a record", "run")
    if record is None:
        return None
    name = f"{record.fingerprint}-s{record.seed}"
    if FOLDER.fullmatch(run.name) and run.name != name:
        raise UserError(f"{path} is the record of another run ({name}); delete it to run this one.")
    return record


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
    evaluation = _read(evaluation_place(run, changes), _Evaluation, "an evaluation", "evaluate")
    return None if evaluation is None else evaluation.metrics


def read_measurement(path: Path) -> Measurement | None:
    """The measurement in a file, or None without a file; raises UserError when the file is not a measurement."""
    return _read(path, Measurement, "a measurement", "measure")


def _read(path: Path, kind: type[_Kind], name: str, remedy: str) -> _Kind | None:
    """The content of a file as an instance of a class, or None without a file; raises UserError if it does not fit."""
    try:
        content: _Kind = _schema(kind).validate_json(path.read_bytes())
        return content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read as {name} ({error.strerror}); mend it, or delete it to {remedy} again."
        ) from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        reason = f"{key}: {first['msg']}" if key else first["msg"]
        raise UserError(f"{path} is not {name} of this version ({reason}); delete it to {remedy} again.") from None


_schema: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def write_evaluation(
    run: Path, changes: Mapping[str, Any], metrics: Mapping[str, float], facts: Mapping[str, Any]
) -> None:
    """Writes the metrics of a run on changed data, with `facts` (the machine, the versions and the time)."""
    write_json(evaluation_place(run, changes), {"changes": dict(changes), "metrics": dict(metrics), **facts})


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


def read_history(path: Path) -> dict[int, dict[str, float]]:
    """The rows of a run's `metrics.csv` by optimiser step; empty without a file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {int(row.pop("step")): {k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)}


def now() -> str:
    """The current time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Writes a JSON file atomically; several processes may write it at once."""
    with atomic_write(path, several=True) as place, place.open("w") as file:  # processes of a run may fail at once
        json.dump(content, file, indent=indent, default=str)
        file.flush()
        os.fsync(file.fileno())
