"""What the runs of a sweep are doing, read from their folders, so that it is the same with any launcher."""

import csv
import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from subquad import records
from subquad.results.cells import RunSpec


class State(enum.Enum):
    """Of one run."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Change:
    """A run that has come to another state; `seconds` from its start where it has finished."""

    job: RunSpec
    state: State
    seconds: float | None = None


class Follower:
    """The states of jobs. `since` is a time by the clock of their disk; what was written before it does not count."""

    def __init__(self, jobs: Sequence[RunSpec], since: float) -> None:
        self.jobs, self.since = list(jobs), since
        self.states = {job.folder: State.FINISHED if job.finished else State.WAITING for job in self.jobs}
        self.seconds: dict[Path, float] = {}

    def look(self) -> list[Change]:
        """Reads the folders again; what has changed since the last time."""
        changes = []
        for job in self.jobs:
            if self.states[job.folder] is State.FINISHED:
                continue
            state = self._state(job)
            if state is not self.states[job.folder]:
                if state is State.FINISHED:
                    self.seconds[job.folder] = max(0.0, _time(_end(job)) - self._started(job))
                changes.append(Change(job, state, self.seconds.get(job.folder)))
                self.states[job.folder] = state
        return changes

    def count(self, state: State) -> int:
        """How many runs are in a state."""
        return sum(found is state for found in self.states.values())

    def seconds_left(self) -> float | None:
        """From how long finished runs took, those of the same setting or task first; None before any has finished.

        As many runs are taken to go on at once as are running now.
        """
        if not self.seconds:
            return None
        open_runs = [job.folder for job in self.jobs if self.states[job.folder] in (State.WAITING, State.RUNNING)]
        return sum(map(self._expected, open_runs)) / max(1, self.count(State.RUNNING))

    def _expected(self, folder: Path) -> float:
        def setting(path: Path) -> tuple[Path, str]:
            return path.parent, path.name.partition("-")[0]

        known = self.seconds.items()
        alike = [
            [s for path, s in known if setting(path) == setting(folder)],
            [s for path, s in known if path.parent == folder.parent],
            [s for path, s in known if path.parent.parent == folder.parent.parent],
            list(self.seconds.values()),
        ]
        return statistics.fmean(next(found for found in alike if found))

    def _state(self, job: RunSpec) -> State:
        if job.finished:
            return State.FINISHED
        if _time(job.folder / records.ERROR) >= self.since:
            return State.FAILED
        return State.RUNNING if self._started(job) >= self.since else State.WAITING

    @staticmethod
    def _started(job: RunSpec) -> float:
        """When its latest process began; Hydra writes this file first."""
        return _time(job.folder / ".hydra" / "overrides.yaml")


def step(job: RunSpec) -> int:
    """The optimiser steps of a run that its history tells of; only both ends of the file are read."""
    path = job.folder / "metrics.csv"
    try:
        with path.open("rb") as file:
            names = file.readline()
            file.seek(max(len(names), path.stat().st_size - 4096))
            [*_, last] = file.read().splitlines() or [b""]
        [row] = csv.DictReader([names.decode(), last.decode()])
        return int(row["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def short(states: Mapping[Path, State], jobs: Sequence[RunSpec]) -> str:
    """A cell's runs in a few signs: how many have finished, whether one is running or failed."""
    found = [states.get(job.folder, State.FINISHED if job.finished else State.WAITING) for job in jobs]
    done = found.count(State.FINISHED)
    signs = (">" if State.RUNNING in found else "") + ("!" if State.FAILED in found else "")
    return f"{done}/{len(found)}{signs}" if done or signs else "."


def _end(job: RunSpec) -> Path:
    """The file written last."""
    places = [records.evaluation_place(job.folder, changes) for changes in job.evaluations]
    return max([job.folder / records.RESULT, *places], key=_time)


def _time(path: Path) -> float:
    """Of the last change; 0 where there is no file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
