"""Chooses the number of microbatches of a run by the memory of its GPU."""

import logging
from typing import Any

import pytorch_lightning as pl
import torch

from subquad.data.split_data import SplitData
from subquad.measure.step_memory import microbatches, states_of, step_peak
from subquad.tasks.supervised import Supervised
from subquad.utils.byte_sizes import bytes_of, readable_bytes
from subquad.utils.errors import UserError, first_line

log = logging.getLogger(__name__)

SETTING = "trainer.accumulate_grad_batches"


def is_chosen(setting: Any) -> bool:
    """Whether a value of `trainer.accumulate_grad_batches` leaves the number to the memory: auto, or a size.

    Raises UserError for a value that is neither that nor a number of at least 1.
    """
    if isinstance(setting, int) and not isinstance(setting, bool):
        if setting < 1:
            raise UserError(f"{SETTING} is {setting}; it must be a whole number of at least 1.")
        return False
    if setting != "auto":
        try:
            bytes_of(setting, SETTING)
        except UserError:
            raise UserError(
                f"{SETTING} is {setting}; it must be a whole number of at least 1, auto, or a size such as 24GB."
            ) from None
    return True


def chosen_microbatches(setting: str, trainer: pl.Trainer, module: Supervised, data: SplitData) -> int:
    """The smallest number of microbatches that fits a memory: `auto` is that of the GPU, and 1 on a CPU.

    Raises UserError if none fits, or if the model cannot be traced.
    """
    if setting == "auto" and trainer.strategy.root_device.type != "cuda":
        return 1
    gpus = range(torch.cuda.device_count())
    memory = (  # the smallest, so that all processes choose the same number
        min(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus)
        if setting == "auto"
        else bytes_of(setting, SETTING)
    )
    states, precision, peaks = states_of(module.make_optimizer), str(trainer.precision), dict[int, int]()

    def peak(rows: int) -> int:
        if rows not in peaks:
            peaks[rows] = step_peak(module, data.spec, rows, precision, states, data.batch_size)
        return peaks[rows]

    rows = max(1, data.batch_size // trainer.world_size)
    try:
        count = microbatches(peak, rows, memory)
    except UserError:
        raise
    except Exception as error:  # a model of the user may need values where a trace has none
        raise UserError(
            f"The memory of this model cannot be estimated ({first_line(error)}); set {SETTING} to a number."
        ) from error
    if count is None:
        least = readable_bytes(peak(min(rows, 2)))
        raise UserError(
            f"No number of microbatches fits {readable_bytes(memory)}: two rows take {least} by estimate; try "
            "trainer.precision=bf16-mixed, checkpoint_activations=true, or a smaller model."
        )
    size = rows // count
    log.info("%d microbatches of %d rows: about %s of %s.", count, size, *map(readable_bytes, (peak(size), memory)))
    return count
