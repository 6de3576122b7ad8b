"""Warns early about runs that will take long."""

import logging
import statistics
import time
from typing import Any

import pytorch_lightning as pl
import torch

from subquad.utils.setting_types import Count, Natural, NonNegative

log = logging.getLogger(__name__)


class TimeEstimate(pl.Callback):
    """Warns after the first steps if the rest of the run would take more than `warn_hours`.

    The first `warmup` steps are not counted; the mean time of the next `steps` is multiplied by the steps that remain.

    Args:
        alternative: a shorter command to suggest; None for no suggestion.
    """

    def __init__(
        self, alternative: str | None, warn_hours: NonNegative = 2.0, warmup: Natural = 1, steps: Count = 3
    ) -> None:
        self.alternative, self.warn_hours, self.warmup, self.steps = alternative, warn_hours, warmup, steps
        self.started = 0.0
        self.seconds: list[float] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if len(self.seconds) < self.warmup + self.steps and batch_idx % trainer.accumulate_grad_batches == 0:
            self.started = _now(pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if len(self.seconds) >= self.warmup + self.steps or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        self.seconds.append(_now(pl_module) - self.started)
        if len(self.seconds) < self.warmup + self.steps or not trainer.is_global_zero:
            return
        step = statistics.fmean(self.seconds[self.warmup :])
        left = int(trainer.estimated_stepping_batches) - trainer.global_step
        if step * left > self.warn_hours * 3600:
            log.warning(_message(step, left, self.alternative))


def _now(module: pl.LightningModule) -> float:
    """The time in seconds when all work given to the module's device is done."""
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter()


def _message(step: float, left: int, alternative: str | None) -> str:
    hours = step * left / 3600
    duration = f"{hours / 24:.1f} days" if hours >= 36 else f"{hours:.1f} hours"
    text = f"This run will take about {duration} on this machine ({step:.2g} s a step, {left} steps left)."
    return text if alternative is None else f"{text} For a result in minutes: {alternative}"
