"""The memory of the training steps of settings, and what makes them fit one; estimated without a GPU."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from subquad.measure.step_memory import cheapest, in_words, sees_whole_batch, states_of, step_peak
from subquad.planning.cost import Setting
from subquad.planning.model_size import module_of
from subquad.utils.byte_sizes import readable_bytes
from subquad.utils.errors import first_line
from subquad.utils.spread import spread

Peaks = dict[str, int]
"""Peak bytes of a training step by device, microbatches, and whether layers are recomputed."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of a setting's training step.

    Attributes:
        whole: peak bytes with the whole batch at once; 0 if the memory is unknown.
        way: whether layers are recomputed and the number of microbatches, as a run does; None if nothing fits.
        least: peak bytes of that way; the smallest peak that was traced if nothing fits.
        peaks: the peaks that were traced.
        unknown: the reason why the memory is unknown; None if it is known.
    """

    setting: Setting
    whole: int
    way: tuple[bool, int] | None
    least: int
    peaks: Peaks
    unknown: str | None = None

    @property
    def answer(self) -> str:
        """The memory with the whole batch, and what makes the step fit."""
        if self.unknown:
            return f"unknown ({self.unknown})"
        least = readable_bytes(self.least)
        if self.way is None:
            return f"{readable_bytes(self.whole)}; does not fit (at least {least})"
        return f"{readable_bytes(self.whole)}; {in_words(*self.way, -(-self.setting.batch // self.way[1]))} ({least})"


def whole_steps(settings: Sequence[Setting], known: dict[str, Peaks]) -> dict[str, dict[str, int]]:
    """Peak bytes of a training step with the whole batch, by family and by "cpu" or "cuda"; adds to `known`."""
    peaks: dict[str, dict[str, int]] = {}
    for device in ("cpu", "cuda"):
        for fit in fits(settings, sys.maxsize, known, device):
            if fit.unknown is None:
                peaks.setdefault(fit.setting.family, {})[device] = fit.whole
    return peaks


def fits(settings: Sequence[Setting], memory: int, known: dict[str, Peaks], device: str = "cuda") -> list[Fit]:
    """How settings fit `memory` bytes, one of each family; adds to the `known` peaks by family."""
    distinct = list({setting.family: setting for setting in settings}.values())
    found = spread(
        partial(_fit, memory=memory, device=device), [(each, known.get(each.family, {})) for each in distinct]
    )
    known |= {fit.setting.family: fit.peaks for fit in found if fit.peaks}
    return found


def _fit(item: tuple[Setting, Peaks], memory: int, device: str) -> Fit:
    setting, known = item
    peaks, seen = dict(known), dict[tuple[bool, int], int]()
    built = cache(lambda: module_of(setting))

    def peak(again: bool, count: int) -> int:
        key = f"{device}, {count} microbatches" + ", layers recomputed" * again
        if key not in peaks:
            module, spec = built()
            if module is None:
                raise ValueError("the data are missing here")
            states, rows = states_of(module.make_optimizer), -(-setting.batch // count)
            peaks[key] = step_peak(module, spec, rows, setting.precision, states, setting.batch, device, again)
        seen[again, count] = peaks[key]
        return peaks[key]

    try:
        way = cheapest(peak, setting.data["batch_size"], memory, lambda: not sees_whole_batch(built()[0]))
        return Fit(setting, seen[False, 1], way, min(seen.values()) if way is None else seen[way], peaks)
    except Exception as error:  # of any model, also of the user's own; the others are still planned
        return Fit(setting, 0, None, 0, {}, first_line(error))
