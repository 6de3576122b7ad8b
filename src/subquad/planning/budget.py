"""How long runs may train so that a comparison fits into a given time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subquad.utils.display import counted, duration
from subquad.utils.errors import UserError

LEAST_STEPS = 100
"""A comparison of fewer optimiser steps says more about the start of training than about attention."""
_RESERVE = 0.9
"""Share of the time that is planned; the rest is for the last run of each round and for a machine that slows down."""


@dataclass(frozen=True, slots=True)
class EpochPace:
    """What short runs have shown.

    start: seconds from the command to the training of the first run. between: seconds of a run beside its epochs. unit:
    seconds of an epoch by row, with its validation and checkpoint. workers: runs at a time.
    """

    start: float
    between: float
    unit: Mapping[str, float]
    workers: int

    @classmethod
    def of(cls, walls: Mapping[str, Mapping[float, float]], elapsed: float, start: float, workers: int) -> "EpochPace":
        """From seconds of training by row and number of epochs, and the seconds of all these runs together.

        A longer run and a shorter one tell an epoch from what every run does once; of one length, all counts as epochs.
        Noise can make the longer one look quick, so that an epoch is at least a quarter of what the longer run says.
        """
        unit = {}
        for row, known in walls.items():
            most, least = max(known), min(known)
            whole = known[most] / most
            unit[row] = whole if most == least else max(whole / 4, (known[most] - known[least]) / (most - least))
        runs = sum(map(len, walls.values()))
        work = sum(unit[row] * epochs for row, known in walls.items() for epochs in known)
        return cls(start, max(0.0, ((elapsed - start) * workers - work) / runs), unit, workers)

    def seconds(self, units: int, rounds: Sequence[int]) -> float:
        """Time of runs of so many epochs. rounds: how many runs of each row are trained in each sweep."""
        runs = sum(rounds)
        work = runs * (units * sum(self.unit.values()) + self.between * len(self.unit))
        return self.start * len(rounds) + work / self.workers


def epochs_within(pace: EpochPace, seconds: float, rounds: Sequence[int], least: int, most: int, spent: float) -> int:
    """The largest number of epochs, at most `most`, with which all runs end within the seconds that are left.

    Raises UserError, with the time that would do, where not even `least` epochs do.
    """
    left = (seconds - spent) * _RESERVE
    if pace.seconds(least, rounds) > left:
        needed = spent + pace.seconds(least, rounds) / _RESERVE
        raise UserError(
            f"hours={seconds / 3600:.2g} is too short: {counted(least, 'epoch')} of each run, the least that says "
            f"something, take {duration(needed, 0)} or more; say hours={_rounded_up(needed / 3600)}, or fewer "
            "attentions=, rates= or seeds=, or limits.cases= for a part of the rows."
        )
    fixed, every = pace.seconds(0, rounds), pace.seconds(1, rounds) - pace.seconds(0, rounds)
    return max(least, min(most, int((left - fixed) / every)))


def least_epochs(steps_per_epoch: int, most: int) -> int:
    """The number of epochs with LEAST_STEPS steps, or all that the recipe has."""
    return min(most, max(2, -(-LEAST_STEPS // steps_per_epoch)))


def _rounded_up(hours: float) -> float:
    """With two decimals, or as a whole number."""
    return -(-hours * 100 // 1) / 100 if hours < 10 else float(-(-hours // 1))
