"""Whether the training steps of settings fit a memory, and with how many microbatches; estimated without a GPU."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from subquad.measure.step_memory import microbatches, states_of, step_peak
from subquad.planning.cost import Setting
from subquad.planning.model_size import module_of
from subquad.utils.errors import first_line
from subquad.utils.spread import spread

Peaks = dict[int, int]
"""Peak bytes of a training step by the rows of a microbatch."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of a setting's training step.

    Attributes:
        count: the smallest number of microbatches that fits; None if none fits or the memory is unknown.
        peaks: the peaks that were traced; empty if the memory is unknown.
        unknown: the reason why it is unknown; None if it is known.
    """

    setting: Setting
    count: int | None
    peaks: Peaks
    unknown: str | None = None

    @property
    def whole(self) -> int:
        """Peak bytes of a step with the whole batch at once."""
        return self.peaks[self.setting.batch]

    @property
    def divided(self) -> int:
        """Peak bytes with `count` microbatches; the smallest peak that was traced if none fits."""
        return min(self.peaks.values()) if self.count is None else self.peaks[self.setting.batch // self.count]


def whole_steps(settings: Sequence[Setting], known: dict[str, Peaks]) -> dict[str, dict[str, int]]:
    """Peak bytes of a training step with the whole batch, by family and by "cpu" or "cuda"; adds to `known`."""
    peaks: dict[str, dict[str, int]] = {}
    for device in ("cpu", "cuda"):
        for fit in fits(settings, sys.maxsize, known, device):
            if fit.unknown is None:
                peaks.setdefault(fit.setting.family, {})[device] = fit.whole
    return peaks


def fits(settings: Sequence[Setting], memory: int, known: dict[str, Peaks], device: str = "cuda") -> list[Fit]:
    """How settings fit `memory` bytes, one of each family; adds to the `known` peaks by family and device."""
    distinct = list({setting.family: setting for setting in settings}.values())
    key = "{}" if device == "cuda" else "{}-cpu"
    items = [(setting, known.get(key.format(setting.family), {})) for setting in distinct]
    found = spread(partial(_fit, memory=memory, device=device), items)
    known |= {key.format(fit.setting.family): fit.peaks for fit in found if fit.peaks}
    return found


def _fit(item: tuple[Setting, Peaks], memory: int, device: str) -> Fit:
    setting, known = item
    peaks, built = dict(known), None

    def peak(rows: int) -> int:
        nonlocal built
        if rows not in peaks:
            built = built or module_of(setting)
            module, spec = built
            if module is None:
                raise ValueError("the data are missing here")
            states = states_of(module.make_optimizer)
            peaks[rows] = step_peak(module, spec, rows, setting.precision, states, setting.batch, device)
        return peaks[rows]

    try:
        return Fit(setting, microbatches(peak, setting.batch, memory), peaks)
    except Exception as error:  # of any model, also of the user's own; the others are still planned
        return Fit(setting, None, {}, first_line(error))
