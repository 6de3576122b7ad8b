"""Reads the outputs folder. A file that cannot be read is reported and does not stop the rest."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path

from subquad import records
from subquad.config.choices import options
from subquad.results.model import Problem, Run
from subquad.utils.display import command_line
from subquad.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class Scan:
    """Runs by folder, oldest first; broken files and failed runs; folders of runs that have not ended."""

    runs: dict[Path, Run] = field(default_factory=dict)
    broken: list[Problem] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    unfinished: int = 0


def scan_runs(root: Path) -> Scan:
    """Every run below a folder such as outputs/runs."""
    runs, broken, failed, ended = [], [], [], set()
    for path in sorted(root.rglob(records.RESULT)):
        folder = path.parent
        ended.add(folder)
        try:
            run = read_run(folder)
        except UserError as error:
            broken.append(Problem(path=str(path), message=str(error)))
            continue
        if run is None:
            continue
        history: dict[int, dict[str, float]] = {}
        try:
            history = records.read_curve(folder, run.record)
        except UserError as error:
            broken.append(Problem(path=str(folder / records.HISTORY), message=f"No learning curve: {error}"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            broken.append(Problem(path=str(folder / records.HISTORY), message=f"No learning curve ({error!r})."))
        if wrong := [f"`{name}`" for name, value in run.record.metrics.items() if not math.isfinite(value)]:
            message = f"No number in the record, so in no table: {', '.join(wrong)}. The run's page has the others."
            broken.append(Problem(path=str(path), message=message))
        key = folder.relative_to(root).as_posix()
        runs.append((folder, dataclasses.replace(run, key=key, history=history)))
    for path in sorted(root.rglob(records.ERROR)):
        if path.parent not in ended:
            ended.add(path.parent)
            message = records.read_error(path.parent, since=0) or "error.json cannot be read."
            failed.append(Problem(path=path.parent.relative_to(root).as_posix(), message=message))
    started = {path.parent for path in root.rglob(".hydra")}
    runs.sort(key=lambda pair: pair[1].record.finished)
    return Scan(dict(runs), broken, failed, len(started - ended))


def read_run(folder: Path) -> Run | None:
    """The run of a folder without its history, or None if it has not finished; raises UserError at a bad record."""
    record = records.read(folder)
    return None if record is None else Run(key=folder.as_posix(), record=record, command=_command(folder, record))


def _command(folder: Path, record: records.Record) -> str:
    """The command that trained a run, or what its record says of it."""
    overrides = given_overrides(folder, record)
    if not overrides:
        group = "backbone" if record.attention in options("backbone") else "attention"
        overrides = [f"task={record.task}", f"{group}={record.attention}", f"seed={record.seed}"]
    return command_line("python train.py", overrides)


def given_overrides(folder: Path, record: records.Record) -> list[str]:
    """The overrides that trained a run, for early records from the file that Hydra keeps beside them; or none."""
    import yaml

    if record.overrides:
        return record.overrides
    try:
        found = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [str(override) for override in found] if isinstance(found, list) else []


def read_measurements(folder: Path) -> tuple[dict[Path, records.Measurement], list[Problem]]:
    """Measurements of cells by the path of their file, and files that cannot be read."""
    found, broken = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            if (content := records.read_measurement(path)) is not None:
                found[path] = content
        except UserError as error:
            broken.append(Problem(path=str(path), message=str(error)))
    return found, broken


def newest(folder: Path, pattern: str, count: int) -> list[Path]:
    """The files that match, newest first, at most so many."""
    found = [path for path in folder.glob(pattern) if path.is_file()]
    return sorted(found, key=lambda path: (path.stat().st_mtime, str(path)), reverse=True)[:count]
