"""Sums up the remaining runs of tables and their cost, task by task."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from subquad.planning.cost import FLOAT_BYTES, Device, Pace, Paces, Setting
from subquad.results.cells import RunSpec


@dataclass(frozen=True, slots=True)
class Work:
    """All runs of one setting.

    Attributes:
        parameters: number of the model's parameters; None if it is unknown.
        needs: a sentence on missing data; None if none are missing.
        memory: peak bytes of a training step on a CPU ("cpu") and on a GPU ("cuda"), as far as they are known.
        others: the pace of other attentions, for where that of this one is not known.
    """

    setting: Setting
    jobs: Sequence[RunSpec]
    parameters: int | None
    needs: str | None
    memory: Mapping[str, int] = field(default_factory=dict)
    others: Pace | None = None

    @property
    def left(self) -> int:
        """Runs that have not finished."""
        return sum(not job.finished for job in self.jobs)


@dataclass(slots=True)
class Share:
    """Cost of a group of runs.

    Attributes:
        left: number of runs that have not finished.
        timed: number of runs left that `seconds` includes.
        whole: number of timed runs whose time is based on finished runs; the others are based on training steps only.
        kept: number of those whose time is based on a run that the project keeps.
        others: number of those whose time is that of other attentions.
        sized: number of runs left that `checkpoint_bytes` includes.
        seconds: time of the runs left, by device.
        needs: sentences on missing data.
        memory: the largest of the known peaks of training steps, as in `Work`.
    """

    runs: int = 0
    left: int = 0
    timed: int = 0
    whole: int = 0
    kept: int = 0
    others: int = 0
    sized: int = 0
    seconds: dict[Device, float] = field(default_factory=lambda: defaultdict(float))
    checkpoint_bytes: int = 0
    needs: set[str] = field(default_factory=set)
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """Runs that need nothing more."""
        return self.runs - self.left

    def add(self, work: Work, paces: Paces, here: Device | None, states: int) -> None:
        """Adds the runs of a setting; `states` is the number of values that its optimiser stores per parameter."""
        left = work.left
        self.runs += len(work.jobs)
        self.left += left
        if left:
            self.memory |= {key: max(peak, self.memory.get(key, 0)) for key, peak in work.memory.items()}
        if work.needs is not None and left:
            self.needs.add(work.needs)
        pace = paces.of(work.setting, here) or work.others
        if pace is not None and work.setting.steps is not None:
            self.seconds[pace.device] += left * pace.seconds * work.setting.steps
            self.timed += left
            self.whole += left * pace.whole
            self.kept += left * pace.kept
            self.others += left * (pace is work.others)
        if work.parameters is not None:
            self.checkpoint_bytes += left * checkpoint_bytes(work.setting, work.parameters, states)
            self.sized += left


def checkpoint_bytes(setting: Setting, parameters: int, states: int) -> int:
    """Size of the checkpoints that a finished run keeps; its other files take a few kilobytes."""
    copies = setting.weights_only + setting.with_states * (1 + states)
    return FLOAT_BYTES * parameters * copies


def jobs_by_setting(jobs: Iterable[RunSpec]) -> dict[tuple[str, ...], list[RunSpec]]:
    """Distinct runs by the overrides of their setting, which are those of the run without the seed at the end."""
    groups: dict[tuple[str, ...], dict[str, RunSpec]] = defaultdict(dict)
    for job in jobs:
        groups[job.overrides[:-1]][str(job.folder)] = job
    return {overrides: list(group.values()) for overrides, group in groups.items()}


def shares(
    works: Iterable[Work], paces: Paces, here: Device | None, states: Mapping[tuple[str, ...], int]
) -> tuple[dict[str, Share], Share]:
    """Cost of each task, and of all tasks together.

    Args:
        here: this machine's device, whose measurements are preferred.
        states: number of values that the optimiser stores for each parameter, by the overrides of a setting.
    """
    tasks: dict[str, Share] = defaultdict(Share)
    total = Share()
    for work in works:
        for share in (tasks[work.setting.task], total):
            share.add(work, paces, here, states[work.setting.overrides])
    return dict(tasks), total
