"""Checkpoints that a full disk or a kill cannot leave half-written, and that may be moved to another folder."""

import os
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from subquad.utils.atomic import atomic_write


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes beside the target and renames: the file there is the old checkpoint or the whole new one, never a part.

    Lightning's own way goes through the temporary folder, which may lie on another disk; the last step is then a copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Raises OSError where the disk is full; the checkpoint that was there is kept."""
        with atomic_write(Path(path)) as place, place.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())


class SpareCheckpoints(pl.Callback):
    """Writes the checkpoint that an interrupted run goes on from every `seconds`, not after every short epoch.

    A small model trains an epoch in little more time than its checkpoint takes. As a run repeats the same numbers from
    any epoch, an interruption costs the training of those seconds and nothing else. The checkpoint is always written
    after the first epoch of a process, after the last one, and where the best score of the run has changed, so that it
    knows the best checkpoint. It stands before `saver` in the list of callbacks.
    """

    def __init__(self, saver: ModelCheckpoint, seconds: float = 10.0) -> None:
        self.saver, self.seconds = saver, seconds
        self.written = float("-inf")
        self.score: torch.Tensor | None = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now, score = time.monotonic(), trainer.checkpoint_callback.best_model_score  # type: ignore[union-attr]
        last = trainer.should_stop or trainer.global_step >= trainer.estimated_stepping_batches
        due = bool(last or score != self.score or now - self.written >= self.seconds)
        if trainer.strategy.broadcast(due):  # processes write together, and their clocks differ
            self.written, self.score = now, score
        else:
            self.saver._last_global_step_saved = trainer.global_step  # as if it had been written


class MovedCheckpoints(pl.Callback):
    """Resumes a run whose folder has moved since its checkpoint was written.

    ModelCheckpoint keeps absolute paths and forgets its best score where they are not those of its own folder. Here
    they are replaced by the paths of the same files in that folder, before ModelCheckpoint reads them.
    """

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        states = checkpoint.get("callbacks", {})  # weights alone have none
        for saver in trainer.checkpoint_callbacks:
            if saver.state_key in states:
                states[saver.state_key] = _moved(states[saver.state_key], saver.dirpath)  # type: ignore[attr-defined]


def _moved(state: dict[str, Any], folder: str) -> dict[str, Any]:
    """The state of a ModelCheckpoint with its files in another folder."""

    def place(path: str) -> str:
        return path and os.path.join(folder, os.path.relpath(path, state["dirpath"]))

    paths = {key: place(path) for key, path in state.items() if key.endswith("_model_path")}
    best = {place(path): score for path, score in state["best_k_models"].items()}
    return state | paths | {"best_k_models": best, "dirpath": folder}
