"""What runs and measurements leave on disk, and how it is read: everything is checked against one schema."""

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

from subquad.utils.atomic import whole
from subquad.utils.errors import UserError

RESULT, ERROR, EVALUATIONS = "result.json", "error.json", "evaluations"

FOLDER = re.compile(r"[0-9a-f]{12}-s\d+")
"""The name of a run's folder: its fingerprint and its seed."""


_Kind = TypeVar("_Kind")
_STRICT = ConfigDict(extra="forbid", strict=True)


def _having(kinds: Mapping[str, type | tuple[type, ...]]) -> AfterValidator:
    """Requires keys of a mapping, with dots for mappings inside it, and the types of their values."""

    def check(mapping: dict[str, Any]) -> dict[str, Any]:
        for key, kind in kinds.items():
            value: Any = mapping
            for part in key.split("."):
                if not isinstance(value, dict) or part not in value:
                    raise ValueError(f"it has no {key}")
                value = value[part]
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

    attention: the choice of attention, or of the backbone where it takes none (s4, tlb).
    metrics: names to values (accuracy is a fraction in [0, 1]); baselines: scores on the test split that need no
    model; wall_seconds: training and testing, over all restarts.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What `measure` of a table's cell gave: a number or words; where, with what and when.

    note: how it was measured, where that is not as `measure` asks for.
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
    """What is read of an evaluation."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)

    metrics: dict[str, float]


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Twelve hex digits that name a configuration; equal settings give equal names, in any order of keys."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write(record: Record, run: Path) -> None:
    """Writes `result.json` as a whole and removes the error of an earlier try."""
    write_json(run / RESULT, dataclasses.asdict(record))
    (run / ERROR).unlink(missing_ok=True)


def write_error(message: str, trace: str, run: Path) -> None:
    """Keeps why a run failed, in `error.json`, until a later try succeeds."""
    write_json(run / ERROR, {"message": message, "traceback": trace, "time": now()})


def read_error(run: Path, since: float) -> str | None:
    """The message of an error written at a time (seconds, as `time.time`) or later; None where there is none."""
    path = run / ERROR
    try:
        return json.loads(path.read_text())["message"] if path.stat().st_mtime >= since else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def read(run: Path) -> Record | None:
    """The record of a run directory, or None where the run has not finished.

    Raises UserError when the file is there and is no record, or that of a run whose folder has another name.
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
    """The file of what a run's best weights reach on data with some settings changed."""
    return run / EVALUATIONS / f"{fingerprint(changes)}.json"


def complete(run: Path, evaluations: Iterable[Mapping[str, Any]] = ()) -> bool:
    """Whether a run has its record, which is written last, and what it reaches on all these changes of its data."""
    return (run / RESULT).exists() and all(evaluation_place(run, changes).exists() for changes in evaluations)


def read_evaluation(run: Path, changes: Mapping[str, Any]) -> dict[str, float] | None:
    """The metrics of a run on changed data, or None where it was not evaluated on them.

    Raises UserError when the file is there and is no evaluation.
    """
    found = _read(evaluation_place(run, changes), _Evaluation, "an evaluation", "evaluate")
    return None if found is None else found.metrics


def read_measurement(path: Path) -> Measurement | None:
    """A kept measurement, or None where there is none; raises UserError when the file is something else."""
    return _read(path, Measurement, "a measurement", "measure")


def _read(path: Path, kind: type[_Kind], name: str, remedy: str) -> _Kind | None:
    """A file that must fit a class; None where there is none. Raises UserError, naming what is wrong."""
    try:
        found: _Kind = _schema(kind).validate_json(path.read_bytes())
        return found
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read as {name} ({error.strerror}); mend it, or delete it to {remedy} again."
        ) from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = "".join(f"{part}: " for part in (".".join(map(str, first["loc"])),) if part)
        raise UserError(
            f"{path} is not {name} of this version ({where}{first['msg']}); delete it to {remedy} again."
        ) from None


_schema: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def write_evaluation(
    run: Path, changes: Mapping[str, Any], metrics: Mapping[str, float], facts: Mapping[str, Any]
) -> None:
    """Keeps the metrics of a run on changed data, with where, with what and when they were found."""
    write_json(evaluation_place(run, changes), {"changes": dict(changes), "metrics": dict(metrics), **facts})


def read_all(runs: Path, tell: Callable[[UserError], object] | None = None) -> list[Record]:
    """Every finished run below a folder, oldest first.

    A file that is no record of its folder is left out and told; raises UserError where nobody is told.
    """
    found = []
    for path in sorted(runs.rglob(RESULT)):
        try:
            found.append(read(path.parent))
        except UserError as error:
            if tell is None:
                raise
            tell(error)
    return sorted((r for r in found if r is not None), key=lambda r: r.finished)


def read_history(path: Path) -> dict[int, dict[str, float]]:
    """Rows of a run's `metrics.csv` by optimiser step; empty where there is none."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {int(row.pop("step")): {k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)}


def now() -> str:
    """The time, UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Writes a JSON file that appears as a whole or not at all, also where several processes write it."""
    with whole(path, several=True) as place, place.open("w") as file:  # processes of a run may fail at once
        json.dump(content, file, indent=indent, default=str)
        file.flush()
        os.fsync(file.fileno())
