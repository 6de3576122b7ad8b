"""Wall time of a run, summed over its restarts."""

import time
from typing import Any

import pytorch_lightning as pl


class WallClock(pl.Callback):
    """Counts the seconds of training; time between the last checkpoint and a kill is not counted."""

    def __init__(self) -> None:
        self.before = 0.0
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time so far, including earlier processes of the run."""
        return self.before + time.monotonic() - self.started

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before = state_dict["seconds"]
