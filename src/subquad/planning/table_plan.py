"""What is left to do of tables, task by task, and what it costs: pure sums over settings whose costs are known."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from subquad.planning.cost import FLOAT_BYTES, Device, Paces, Setting
from subquad.results.cells import RunSpec


@dataclass(frozen=True, slots=True)
class Work:
    """All runs of one setting. parameters: of its model, None where they are not known. needs: what is missing here."""

    setting: Setting
    jobs: Sequence[RunSpec]
    parameters: int | None
    needs: str | None

    @property
    def left(self) -> int:
        """Runs that have not finished."""
        return sum(not job.finished for job in self.jobs)


@dataclass(slots=True)
class Share:
    """What some of the runs cost. seconds: by device; timed, sized: how many runs left are in those sums.

    whole: how many of the timed ones are planned by finished runs; the others by training steps alone.
    """

    runs: int = 0
    left: int = 0
    timed: int = 0
    whole: int = 0
    sized: int = 0
    seconds: dict[Device, float] = field(default_factory=lambda: defaultdict(float))
    checkpoint_bytes: int = 0
    needs: set[str] = field(default_factory=set)

    @property
    def finished(self) -> int:
        """Runs that need nothing more."""
        return self.runs - self.left

    def add(self, work: Work, paces: Paces, here: Device | None, states: int) -> None:
        """Counts the runs of a setting; `states` are the numbers that its optimiser keeps for each parameter."""
        left = work.left
        self.runs += len(work.jobs)
        self.left += left
        if work.needs is not None and left:
            self.needs.add(work.needs)
        pace = paces.of(work.setting, here)
        if pace is not None and work.setting.steps is not None:
            self.seconds[pace.device] += left * pace.seconds * work.setting.steps
            self.timed += left
            self.whole += left * pace.whole
        if work.parameters is not None:
            self.checkpoint_bytes += left * checkpoint_bytes(work.setting, work.parameters, states)
            self.sized += left


def checkpoint_bytes(setting: Setting, parameters: int, states: int) -> int:
    """What a finished run leaves on disk, beside a few kilobytes: its kept checkpoints, in numbers of four bytes."""
    copies = setting.weights_only + setting.with_states * (1 + states)
    return FLOAT_BYTES * parameters * copies


def gathered(jobs: Iterable[RunSpec]) -> dict[tuple[str, ...], list[RunSpec]]:
    """Distinct runs by the words of their setting: those without the seed, which is last."""
    found: dict[tuple[str, ...], dict[str, RunSpec]] = defaultdict(dict)
    for job in jobs:
        found[job.overrides[:-1]][str(job.folder)] = job
    return {words: list(group.values()) for words, group in found.items()}


def shares(
    works: Iterable[Work], paces: Paces, here: Device | None, states: Mapping[tuple[str, ...], int]
) -> tuple[dict[str, Share], Share]:
    """What each task costs, and all of them together; `states` by the words of a setting."""
    tasks: dict[str, Share] = defaultdict(Share)
    total = Share()
    for work in works:
        for share in (tasks[work.setting.task], total):
            share.add(work, paces, here, states[work.setting.words])
    return dict(tasks), total
