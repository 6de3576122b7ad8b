"""Checkpoints that are written atomically, at sensible intervals, and that survive moving the run's folder."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from subquad.utils.atomic import atomic_write


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints atomically: a full disk or a kill leaves either the old file or the complete new one.

    The file is written beside its target and renamed. Lightning writes to the temporary folder instead, which may be on
    another disk; its last step is then a copy, which is not atomic.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Saves a checkpoint; where the disk is full, raises OSError and keeps the previous one."""
        with atomic_write(Path(path)) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())


class SpareCheckpoints(pl.Callback):
    """Writes the last checkpoint at most every `seconds` instead of after every epoch.

    For a small model, writing a checkpoint takes almost as long as training an epoch. Resuming from an earlier epoch
    repeats the same numbers, so an interruption only costs the time to retrain those seconds. The checkpoint is always
    written after the first epoch of a process, after the last epoch, and when the best score has changed, because it
    stores the path of the best checkpoint. This callback must precede `saver` in the trainer's list of callbacks.
    """

    def __init__(self, saver: ModelCheckpoint, seconds: float = 10.0) -> None:
        self.saver, self.seconds = saver, seconds
        self.written_at = float("-inf")
        self.score: torch.Tensor | None = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now, score = time.monotonic(), trainer.checkpoint_callback.best_model_score  # type: ignore[union-attr]
        last = trainer.should_stop or trainer.global_step >= trainer.estimated_stepping_batches
        due = bool(last or score != self.score or now - self.written_at >= self.seconds)
        if trainer.strategy.broadcast(due):  # all processes must decide alike, and their clocks differ
            self.written_at, self.score = now, score
        else:
            self.saver._last_global_step_saved = trainer.global_step  # ModelCheckpoint skips a step it has saved


class RelativePaths(pl.Callback):
    """Lets a run resume after its folder has been moved.

    ModelCheckpoint stores absolute paths and discards its best score when they are outside its current folder. In
    checkpoints with this callback, paths are relative to the folder of checkpoints.
    """

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        _change_paths(trainer, checkpoint, os.path.relpath)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        _change_paths(trainer, checkpoint, lambda path, folder: os.path.normpath(os.path.join(folder, path)))


def _change_paths(trainer: pl.Trainer, checkpoint: dict[str, Any], change: Callable[[str, str], str]) -> None:
    """Replaces the paths in the states of ModelCheckpoint by `change` of each path and the folder of checkpoints."""
    states = checkpoint.get("callbacks", {})  # missing in checkpoints that hold only weights
    for saver in trainer.checkpoint_callbacks:
        if saver.state_key in states:
            state, folder = states[saver.state_key], saver.dirpath  # type: ignore[attr-defined]
            paths = {key: path and change(path, folder) for key, path in state.items() if key.endswith("_model_path")}
            best = {change(path, folder): score for path, score in state["best_k_models"].items()}
            dirpath = change(state["dirpath"], folder)
            states[saver.state_key] = state | paths | {"best_k_models": best, "dirpath": dirpath}
