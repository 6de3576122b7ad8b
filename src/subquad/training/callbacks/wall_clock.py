"""Wall time of a run, summed over its restarts."""

import time
from typing import Any

import pytorch_lightning as pl


class WallClock(pl.Callback):
    """Counts the seconds of training and testing, from where the data and the model are there.

    Time between the last checkpoint and a kill is not counted.
    """

    def __init__(self) -> None:
        self.before = 0.0
        self.started: float | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.started = self.started or time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time so far, including earlier processes of the run."""
        return self.before + (0.0 if self.started is None else time.monotonic() - self.started)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before = state_dict["seconds"]
