"""Checkpoints that a full disk or a kill cannot leave half-written, and that may be moved to another folder."""

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from subquad.atomic import whole


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes beside the target and renames: the file there is the old checkpoint or the whole new one, never a part.

    Lightning's own way goes through the temporary folder, which may lie on another disk; the last step is then a copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Raises OSError where the disk is full; the checkpoint that was there is kept."""
        with whole(Path(path)) as place, place.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())


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
