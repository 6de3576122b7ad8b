"""Checkpoints that a full disk or a kill cannot leave half-written."""

import os
from pathlib import Path
from typing import Any

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
