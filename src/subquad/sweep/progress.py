"""Progress of a running sweep: a live table in a terminal, plain lines elsewhere."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from subquad import records
from subquad.results.cells import RunSpec
from subquad.results.table import Place
from subquad.sweep.monitor import Change, Follower, State, short, step
from subquad.utils.display import counted, duration

_MOST_COLUMNS = 14
"""A table with more columns is shown in one row."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A table in progress: its name and the runs of each cell."""

    name: str
    cells: Mapping[Place, Sequence[RunSpec]]

    def filled_by(self, folders: Container[Path]) -> list[str]:
        """The cells that need any of these runs, as "table row / column"."""
        needed = (place for place, runs in self.cells.items() if any(run.folder in folders for run in runs))
        return [f"{self.name} {' / '.join(place)}" for place in needed]


class Progress:
    """Shows the progress of a sweep. Use it as a context manager, and call `look` regularly."""

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
        """Reads the folders of the runs and updates the display."""
        changes = self.follower.look()
        if self.live:
            self.live.update(Group(Text(self.summary()), *self._grids(), self._running()), refresh=True)
            return
        ended = [change for change in changes if change.state in (State.FINISHED, State.FAILED)]
        done = self.follower.count(State.FINISHED) + self.follower.count(State.FAILED) - len(ended)
        for number, change in enumerate(ended, done + 1):
            self.console.print(self._line(change, number), soft_wrap=True, markup=False)

    def summary(self) -> str:
        """Counts of the runs by state and the time left, in one line."""
        count = self.follower.count
        left = self.follower.seconds_left()
        waiting = count(State.WAITING)
        open_runs = waiting + count(State.RUNNING)
        estimate = f"; about {duration(left, digits=0)} left" if left is not None and open_runs else ""
        return (
            f"{count(State.FINISHED)} of {counted(len(self.follower.jobs), 'run')} finished, "
            f"{count(State.RUNNING)} running, {count(State.FAILED)} failed, {waiting} left{estimate}"
        )

    def _line(self, change: Change, number: int) -> str:
        prefix = f"{number}/{len(self.follower.jobs)} {name(change.job)}"
        if change.state is State.FAILED:
            return f"{prefix} failed: {records.read_error(change.job.folder, 0)}"
        left = self.follower.seconds_left()
        estimate = f", about {duration(left, digits=0)} left" if left else ""
        return f"{prefix} finished in {duration(change.seconds or 0.0, digits=0)}{estimate}"

    def _grids(self) -> list[Grid]:
        if len(self.shown) != 1 or len({column for _, column in self.shown[0].cells}) > _MOST_COLUMNS:
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
            jobs = {job.folder: job for cell in table.cells.values() for job in cell}
            grid.add_row(table.name, short(self.follower.states, list(jobs.values())))
        return grid

    def _running(self) -> Grid:
        grid = Grid("running", "step", show_edge=False)
        for job in self.follower.jobs:
            if self.follower.states[job.folder] is State.RUNNING:
                grid.add_row(name(job), f"{step(job):,}")
        return grid


def name(job: RunSpec) -> str:
    """Attention, task, seed and the first digits of the fingerprint of a run, from the path of its folder."""
    folder = job.folder
    attention, task = folder.parent.name, "/".join(folder.parent.parent.parts[-2:]).removeprefix("runs/")
    fingerprint, _, seed = folder.name.partition("-s")
    return f"{attention} on {task}, seed {seed} ({fingerprint[:6]})"
