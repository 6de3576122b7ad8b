"""The page of what is trained at this moment, which loads itself again and again."""

import json
import math
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from subquad import records
from subquad.report.html.page import write_page
from subquad.results.cells import RunSpec
from subquad.sweep.monitor import Follower, State, written_at
from subquad.sweep.progress import name
from subquad.sweep.runner import SWEEPS, is_locked
from subquad.utils.display import duration
from subquad.utils.errors import UserError

RECENT = 12
"""How many finished and failed runs are listed."""
_WIDTH, _HEIGHT = 160, 36


@dataclass(frozen=True, slots=True)
class Running:
    """A run that a process is training. `share` is how much of it is done; `points` its curve as a polyline."""

    title: str
    step: int
    share: float | None
    elapsed: str
    left: str
    metric: str
    latest: str
    best: str
    points: str


def write_live_page(path: Path, outputs: Path, seconds: float) -> str:
    """Writes the page for the runs below a folder, to be loaded again after `seconds`; returns its first line."""
    finished, running, failed = _states(outputs / "runs")
    sweeps = [_sweep(*found) for found in _sweeps(outputs / SWEEPS)]
    left = sum(sweep["left"] for sweep in sweeps)
    line = f"{len(running)} running, {left} waiting, {len(finished)} finished, {len(failed)} failed"
    write_page("live.html.j2", path, {
        "line": line, "seconds": max(1, round(seconds)), "time": time.strftime("%H:%M:%S"), "sweeps": sweeps,
        "running": [found for folder in running if (found := _running(folder))],
        "finished": [_finished(folder) for folder in finished[:RECENT]],
        "failed": [(_title(folder), records.read_error(folder, 0)) for folder in failed[:RECENT]],
    })  # fmt: skip
    return line


def _states(runs: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The folders of finished, running and failed runs, each with the latest first; interrupted ones are left out."""
    finished, running, failed = [], [], []
    for folder in _folders(runs):
        if (folder / records.RESULT).exists():
            finished.append(folder)
        elif is_locked(folder):
            running.append(folder)
        elif (folder / records.ERROR).exists():
            failed.append(folder)
    finished.sort(key=lambda folder: -written_at(folder / records.RESULT))
    failed.sort(key=lambda folder: -written_at(folder / records.ERROR))
    return finished, sorted(running), failed


def _folders(folder: Path) -> Iterator[Path]:
    """The folders of runs below a folder, without a look into them."""
    for place, folders, _ in os.walk(folder):
        runs = [inner for inner in folders if records.FOLDER.fullmatch(inner)]
        yield from (Path(place) / run for run in runs)
        folders[:] = [inner for inner in folders if inner not in runs]


def _running(folder: Path) -> Running | None:
    try:
        config = OmegaConf.load(folder / ".hydra/config.yaml")
    except FileNotFoundError:  # removed since it was found
        return None
    history = records.read_history(folder / records.HISTORY)
    monitor = str(OmegaConf.select(config, "task.monitor"))
    values = [
        (step, row[monitor]) for step, row in sorted(history.items()) if math.isfinite(row.get(monitor, math.nan))
    ]
    step = max(history, default=0)
    share = _share(config, history)
    started = written_at(folder / ".hydra/overrides.yaml")
    resumed = (
        started - written_at(folder / ".lock") > 60
    )  # the lock is created once; how long the first part took is unknown
    elapsed = time.time() - started
    best = (max if OmegaConf.select(config, "task.mode") == "max" else min)((v for _, v in values), default=None)
    return Running(
        title=_title(folder), step=step, share=share, elapsed=duration(elapsed, 0),
        left=duration(elapsed * (1 - share) / share, 0) if share and not resumed else "", metric=monitor,
        latest=f"{values[-1][1]:.4g}" if values else "", best="" if best is None else f"{best:.4g}",
        points=_polyline(values),
    )  # fmt: skip


def _share(config: Any, history: dict[int, dict[str, float]]) -> float | None:
    """How much of a run is done, by its steps or its passes over the data; None before the first validation."""
    try:
        steps, passes = (OmegaConf.select(config, f"trainer.{key}") or -1 for key in ("max_steps", "max_epochs"))
    except OmegaConfBaseException:
        return None
    shares = [max(history, default=0) / steps] if steps > 0 else []
    ended = max((row["epoch"] + 1 for row in history.values() if "epoch" in row), default=0)
    shares += [ended / passes] if passes > 0 else []
    return min(1.0, max(shares, default=0)) or None


def _polyline(values: Sequence[tuple[int, float]]) -> str:
    """Values over steps as the points of an SVG polyline; empty for fewer than two."""
    if len(values) < 2:
        return ""
    low, high = min(v for _, v in values), max(v for _, v in values)
    first, last = values[0][0], values[-1][0]
    across, up = _WIDTH / max(1, last - first), (_HEIGHT - 4) / ((high - low) or 1)
    return " ".join(f"{(s - first) * across:.1f},{_HEIGHT - 2 - (v - low) * up:.1f}" for s, v in values)


def _finished(folder: Path) -> dict[str, str]:
    try:
        record = records.read(folder)
        assert record is not None
    except UserError as error:
        return {"title": _title(folder), "score": str(error), "time": ""}
    score = record.metrics.get(f"test/{record.monitor}")
    value = "" if score is None else f"test {record.monitor} {score:.4g}"
    return {"title": _title(folder), "score": value, "time": duration(record.wall_seconds, 0)}


def _sweeps(folder: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """The start and the content of the lists of sweeps that are going on; one whose process was killed is left out."""
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["host"] == socket.gethostname():
                os.kill(content["process"], 0)
            yield written_at(path), content
        except (OSError, ValueError, KeyError):
            continue


def _sweep(since: float, content: dict[str, Any]) -> dict[str, Any]:
    jobs = [RunSpec((), Path(folder)) for folder in content["runs"]]
    follower = Follower([job for job in jobs if not job.finished], since)
    follower.jobs = jobs
    follower.states |= {job.folder: State.WAITING for job in jobs}
    follower.look()
    running = sum(is_locked(job.folder) for job in jobs if not job.finished)
    seconds = follower.seconds_left()
    done, failed = follower.count(State.FINISHED), follower.count(State.FAILED)
    return {
        "command": content["command"], "runs": len(jobs), "finished": done, "left": len(jobs) - done - running - failed,
        "time": "" if seconds is None or done == len(jobs) else duration(seconds, 0),
    }  # fmt: skip


def _title(folder: Path) -> str:
    return name(RunSpec((), folder))
