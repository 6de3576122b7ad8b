"""Callbacks for reproducible epochs, validation of the first and last epoch, and a stop at a non-finite loss."""

import random
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed


class SeedEpochs(pl.Callback):
    """Seeds the random generators at the start of every epoch from (seed, epoch, rank).

    Batches depend on (seed, epoch) only, so a run resumed at an epoch gives the same numbers as an uninterrupted run.
    """

    def __init__(self, seed: Seed) -> None:
        self.seed = seed

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts a resumed run at its next epoch, as if this process had trained the previous epochs.

        Lightning would resume inside the epoch that has just ended: it keeps an iterator made for the old epoch, and
        skips batches and hooks where the length of training is given in steps.
        """
        loop = trainer.fit_loop
        self._complete_epoch(trainer)
        loop.on_iteration_done()  # clears the loop's restarting flag
        loop.epoch_loop.restarting = False
        loop.epoch_loop.reset_restart_stage()
        loop.epoch_loop.val_loop.reset_restart_stage()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._complete_epoch(trainer)  # for a resumed run with no step left, which does not start training

    def _complete_epoch(self, trainer: pl.Trainer) -> None:
        """Counts the last epoch as completed: its checkpoint is written before Lightning does."""
        epochs = trainer.fit_loop.epoch_progress
        epochs.current.completed, epochs.total.completed = epochs.current.processed, epochs.total.processed  # type: ignore[attr-defined]

    def seeds(self, epoch: int, rank: int) -> tuple[int, int, int]:
        """The seeds of torch, NumPy and Python in a process."""
        first, second, third = map(int, np.random.SeedSequence([self.seed, epoch, rank]).generate_state(3))
        return first, second, third

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch_seed, numpy_seed, python_seed = self.seeds(trainer.current_epoch, trainer.global_rank)
        # For a model on a CPU its generator is enough. torch.manual_seed also queues a seed, with its stack trace, for
        # GPUs that are not initialised.
        on_cpu = pl_module.device.type == "cpu"
        (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(torch_seed)
        np.random.seed(numpy_seed)
        random.seed(python_seed)


class ValidateFirstAndLast(pl.Callback):
    """Validates after the first and the last epoch too, even if `trainer.check_val_every_n_epoch` skips them.

    Where `max_steps` ends training inside an epoch, Lightning would not validate its last steps, whose learning rate is
    the lowest; they are validated here.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.interval = trainer.check_val_every_n_epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.interval is not None:
            first_or_last = trainer.current_epoch in (0, (trainer.max_epochs or 0) - 1)
            trainer.check_val_every_n_epoch = 1 if first_or_last else self.interval

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.interval is not None and trainer.global_step == trainer.max_steps:
            trainer.check_val_every_n_epoch = 1
            trainer.should_stop |= not trainer.is_last_batch  # Lightning then validates inside an epoch


class StopOnNaN(pl.Callback):
    """Stops training at a loss that is not finite, before a checkpoint is written.

    The loss is checked at every step on a CPU, and every `gpu_interval` steps on a GPU, where reading it synchronises.
    """

    def __init__(self, gpu_interval: Count = 20) -> None:
        self.gpu_interval = gpu_interval

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["loss"]
        if loss.device.type == "cpu" or batch_idx % self.gpu_interval == 0 or trainer.is_last_batch:
            self._check("training", loss, trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if "val/loss" in trainer.callback_metrics:
            self._check("validation", trainer.callback_metrics["val/loss"], trainer)

    def _check(self, name: str, loss: torch.Tensor, trainer: pl.Trainer) -> None:
        if not torch.isfinite(loss):
            raise UserError(
                f"The {name} loss became {loss.item()} at step {trainer.global_step}; lower optimizer.lr, set "
                "trainer.gradient_clip_val=1.0, or try trainer.precision=32-true; no checkpoint was written for it."
            )
