"""Comparable wall times: programs run in turn in one process, and medians are taken over rounds."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from subquad.utils.devices import Float32Precision, torch_settings


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each round of one program."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    def ratio(self, other: "Timing") -> float:
        """Median over rounds of this program's time divided by the other's time in the same round."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))

    def spread(self, other: "Timing") -> tuple[float, float]:
        """Smallest and largest ratio over rounds."""
        ratios = [a / b for a, b in zip(self.seconds, other.seconds, strict=True)]
        return min(ratios), max(ratios)


def interleave(
    programs: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2, precision: Float32Precision = "highest"
) -> dict[str, Timing]:
    """Runs every program once in each round, so that changes of the machine's speed affect all programs alike.

    On a GPU each call is synchronised before and after, and torch computes as in a training run (`torch_settings`).
    The first `warmup` rounds are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    with torch_settings(precision):
        for number in range(warmup + rounds):
            for name, run in programs.items():
                _synchronise()
                started = time.perf_counter()
                run()
                _synchronise()
                if number >= warmup:
                    seconds[name].append(time.perf_counter() - started)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
