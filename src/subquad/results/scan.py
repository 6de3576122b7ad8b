"""The outputs folder, read with patience: what cannot be read is named and stops nothing."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subquad import records
from subquad.config.choices import options
from subquad.results.commands import command_line
from subquad.results.model import Problem, Run
from subquad.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class Ledger:
    """Runs by folder, oldest first; broken files and failed runs; folders of runs that have not ended."""

    runs: dict[Path, Run] = field(default_factory=dict)
    broken: list[Problem] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    unfinished: int = 0


def read_ledger(root: Path) -> Ledger:
    """Every run below a folder such as outputs/runs."""
    runs, broken, failed, ended = [], [], [], set()
    for path in sorted(root.rglob(records.RESULT)):
        folder = path.parent
        ended.add(folder)
        try:
            record = records.read(folder)
        except UserError as error:
            broken.append(Problem(path=str(path), message=str(error)))
            continue
        if record is None:
            continue
        history: dict[int, dict[str, float]] = {}
        try:
            history = records.read_history(folder / "metrics.csv")
        except (OSError, ValueError, KeyError, TypeError) as error:
            broken.append(Problem(path=str(folder / "metrics.csv"), message=f"No learning curve ({error!r})."))
        for name, value in record.metrics.items():
            if not math.isfinite(value):
                message = f"`{name}` of the record is {value}, which no table can take; the run's page has the others."
                broken.append(Problem(path=str(path), message=message))
        key = folder.relative_to(root).as_posix()
        runs.append((folder, Run(key=key, record=record, command=_command(folder, record), history=history)))
    for path in sorted(root.rglob(records.ERROR)):
        if path.parent not in ended:
            ended.add(path.parent)
            message = records.read_error(path.parent, since=0) or "error.json cannot be read."
            failed.append(Problem(path=path.parent.relative_to(root).as_posix(), message=message))
    started = {path.parent for path in root.rglob(".hydra")}
    runs.sort(key=lambda pair: pair[1].record.finished)
    return Ledger(dict(runs), broken, failed, len(started - ended))


def _command(folder: Path, record: records.Record) -> str:
    """The line that trained a run, from the words that Hydra keeps beside it."""
    import yaml

    try:
        words = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        words = None
    if not isinstance(words, list):
        group = "backbone" if record.attention in options("backbone") else "attention"
        words = [f"task={record.task}", f"{group}={record.attention}", f"seed={record.seed}"]
    return command_line("python train.py", words)


def read_measurements(folder: Path) -> tuple[dict[Path, dict[str, Any]], list[Problem]]:
    """Files of measured cells by path, and those that cannot be read."""
    found, broken = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            if (content := records.read_measurement(path)) is not None:
                found[path] = dataclasses.asdict(content)
        except UserError as error:
            broken.append(Problem(path=str(path), message=str(error)))
    return found, broken


def newest(folder: Path, pattern: str, count: int) -> list[Path]:
    """The files that match, newest first, at most so many."""
    found = [path for path in folder.glob(pattern) if path.is_file()]
    return sorted(found, key=lambda path: (path.stat().st_mtime, str(path)), reverse=True)[:count]
