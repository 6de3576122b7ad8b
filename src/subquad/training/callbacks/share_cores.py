"""Runs on the same cores divide them instead of fighting for them."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from filelock import FileLock, Timeout

from subquad.utils.cores import core_numbers, usable_cores, usable_threads


class ShareCores(pl.Callback):
    """Gives torch this run's share of the cores: all of them alone, half of them beside one other run.

    Two programs with as many threads as cores each wait for threads that are not running, and both get many times
    slower. Each run holds a lock on a file that names its cores, which ends with the process however it ends; every
    `seconds` a run counts the others on its cores. The number of threads changes results by rounding only.
    """

    def __init__(self, seconds: float = 5.0, folder: str | None = None) -> None:
        self.seconds = seconds
        self.folder = (
            Path(folder or tempfile.gettempdir()) / f"subquad-runs-{os.getuid() if hasattr(os, 'getuid') else 0}"
        )
        self.looked = float("-inf")
        self.own: FileLock | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{os.getpid()}-{time.time_ns()}.{'_'.join(map(str, sorted(core_numbers())))}.lock"
        self.own = FileLock(self.folder / name)
        self.own.acquire()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if now - self.looked >= self.seconds:
            self.looked = now
            torch.set_num_threads(max(1, min(usable_threads(), usable_cores() // (1 + self._neighbours()))))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.own is not None:
            self.own.release()
            Path(self.own.lock_file).unlink(missing_ok=True)
            self.own = None
        torch.set_num_threads(usable_threads())

    def _neighbours(self) -> int:
        """Other living runs that may use a core of ours; files of dead ones are removed."""
        assert self.own is not None
        found = 0
        for path in self.folder.glob("*.lock"):
            if path == Path(self.own.lock_file):
                continue
            try:
                with FileLock(path, timeout=0):
                    path.unlink(missing_ok=True)
            except Timeout:
                theirs = {int(core) for core in path.name.split(".")[1].split("_")}
                found += bool(theirs & core_numbers())
        return found
