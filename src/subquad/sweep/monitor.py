"""States of the runs of a sweep, read from their folders, so that they do not depend on the launcher."""

import csv
import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from subquad import records
from subquad.results.cells import RunSpec


class State(enum.Enum):
    """State of one run."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Change:
    """A run whose state has changed, with the seconds it took if it has finished."""

    job: RunSpec
    state: State
    seconds: float | None = None


class Follower:
    """Follows the states of jobs.

    Args:
        since: modification times before this one, by the clock of the jobs' file system, are ignored.
    """

    def __init__(self, jobs: Sequence[RunSpec], since: float) -> None:
        self.jobs, self.since = list(jobs), since
        self.states = {job.folder: State.FINISHED if job.finished else State.WAITING for job in self.jobs}
        self.seconds: dict[Path, float] = {}
        self.at_once = 0  # the most runs that were seen running

    def look(self) -> list[Change]:
        """Reads the folders again and returns the changes since the last call."""
        changes = []
        for job in self.jobs:
            if self.states[job.folder] is State.FINISHED:
                continue
            state = self._state(job)
            if state is not self.states[job.folder]:
                if state is State.FINISHED:
                    self.seconds[job.folder] = max(0.0, written_at(_end(job)) - self._started(job))
                changes.append(Change(job, state, self.seconds.get(job.folder)))
                self.states[job.folder] = state
        self.at_once = max(self.at_once, self.count(State.RUNNING))
        return changes

    def count(self, state: State) -> int:
        """Number of runs in a state."""
        return sum(current is state for current in self.states.values())

    def seconds_left(self) -> float | None:
        """Estimated seconds until all runs have finished; None before any has finished.

        Each run is expected to take the mean time of the finished runs of the same setting, else of the same attention
        and task, else of the same task, else of all. As many are assumed to run at a time as were seen running so far,
        because a worker has none between two runs.
        """
        if not self.seconds:
            return None
        open_runs = [job.folder for job in self.jobs if self.states[job.folder] in (State.WAITING, State.RUNNING)]
        return sum(map(self._expected, open_runs)) / max(1, min(self.at_once, len(open_runs)))

    def _expected(self, folder: Path) -> float:
        def setting(path: Path) -> tuple[Path, str]:
            return path.parent, path.name.partition("-")[0]

        finished = self.seconds.items()
        from_most_similar = [
            [s for path, s in finished if setting(path) == setting(folder)],
            [s for path, s in finished if path.parent == folder.parent],
            [s for path, s in finished if path.parent.parent == folder.parent.parent],
            list(self.seconds.values()),
        ]
        return statistics.fmean(next(seconds for seconds in from_most_similar if seconds))

    def _state(self, job: RunSpec) -> State:
        if job.finished:
            return State.FINISHED
        if written_at(job.folder / records.ERROR) >= self.since:
            return State.FAILED
        return State.RUNNING if self._started(job) >= self.since else State.WAITING

    @staticmethod
    def _started(job: RunSpec) -> float:
        """Time when the latest process of a run started; Hydra writes this file first."""
        return written_at(job.folder / ".hydra" / "overrides.yaml")


def step(job: RunSpec) -> int:
    """Last optimiser step in the history of a run. Reads only the first line and the end of the file."""
    path = job.folder / records.HISTORY
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
    """State of a cell as "finished/runs", with ">" if any run is running and "!" if any has failed."""
    own = [states.get(job.folder, State.FINISHED if job.finished else State.WAITING) for job in jobs]
    done = own.count(State.FINISHED)
    signs = (">" if State.RUNNING in own else "") + ("!" if State.FAILED in own else "")
    return f"{done}/{len(own)}{signs}" if done or signs else "."


def _end(job: RunSpec) -> Path:
    """The file of a finished run that was written last."""
    evaluations = [records.evaluation_place(job.folder, changes) for changes in job.evaluations]
    return max([job.folder / records.RESULT, *evaluations], key=written_at)


def written_at(path: Path) -> float:
    """Modification time of a file; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
