"""A sweep in the terminal while it runs: a table that is renewed, or plain lines where there is no terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from subquad import records
from subquad.results.cells import RunSpec
from subquad.results.table import Place
from subquad.sweep.monitor import Change, Follower, State, short, step
from subquad.utils.display import duration

_WIDEST = 14
"""Columns of a table that are drawn as such."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A table in progress: its name and the runs of each row and column."""

    name: str
    cells: Mapping[Place, Sequence[RunSpec]]


class Progress:
    """Use as a context, and call `look` now and then."""

    def __init__(self, follower: Follower, shown: Sequence[Shown], console: Console) -> None:
        self.follower, self.shown, self.console = follower, shown, console
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        if self.live:
            self.live.stop()

    def look(self) -> None:
        """Reads the folders of the runs and renews what is shown."""
        changes = self.follower.look()
        if self.live:
            self.live.update(Group(Text(self.summary()), *self._grids(), self._running()), refresh=True)
            return
        for change in changes:
            if change.state in (State.FINISHED, State.FAILED):
                self.console.print(self._line(change), soft_wrap=True, markup=False)

    def summary(self) -> str:
        """How far the sweep is, in one line."""
        count = self.follower.count
        left = self.follower.seconds_left()
        waiting = count(State.WAITING)
        told = f"; about {duration(left, digits=0)} left" if left is not None and waiting + count(State.RUNNING) else ""
        return (
            f"{count(State.FINISHED)} of {len(self.follower.jobs)} runs finished, {count(State.RUNNING)} running, "
            f"{count(State.FAILED)} failed, {waiting} left{told}"
        )

    def _line(self, change: Change) -> str:
        done = self.follower.count(State.FINISHED) + self.follower.count(State.FAILED)
        where = f"{done}/{len(self.follower.jobs)} {name(change.job)}"
        if change.state is State.FAILED:
            return f"{where} failed: {records.read_error(change.job.folder, 0)}"
        left = self.follower.seconds_left()
        told = f", about {duration(left, digits=0)} left" if left else ""
        return f"{where} finished in {duration(change.seconds or 0.0, digits=0)}{told}"

    def _grids(self) -> list[Grid]:
        if len(self.shown) != 1 or len({column for _, column in self.shown[0].cells}) > _WIDEST:
            return [self._tables()] if self.shown else []
        cells = self.shown[0].cells
        columns = dict.fromkeys(column for _, column in cells)
        grid = Grid("", *columns)
        for row in dict.fromkeys(row for row, _ in cells):
            states = (cells.get((row, column), ()) for column in columns)
            grid.add_row(row, *(short(self.follower.states, jobs) if jobs else "" for jobs in states))
        return [grid]

    def _tables(self) -> Grid:
        grid = Grid("table", "runs")
        for table in self.shown:
            jobs = {job.folder: job for found in table.cells.values() for job in found}
            grid.add_row(table.name, short(self.follower.states, list(jobs.values())))
        return grid

    def _running(self) -> Grid:
        grid = Grid("running", "step", show_edge=False)
        for job in self.follower.jobs:
            if self.follower.states[job.folder] is State.RUNNING:
                grid.add_row(name(job), f"{step(job):,}")
        return grid


def name(job: RunSpec) -> str:
    """Attention, task and seed, as the run's folder says them, and the first digits of its fingerprint."""
    folder = job.folder
    attention, task = folder.parent.name, "/".join(folder.parent.parent.parts[-2:]).removeprefix("runs/")
    fingerprint, _, seed = folder.name.partition("-s")
    return f"{attention} on {task}, seed {seed} ({fingerprint[:6]})"
