"""Divides the CPU cores among the runs of a machine."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from filelock import FileLock, Timeout

from subquad.utils.cores import chosen_threads, core_numbers, usable_cores, usable_threads
from subquad.utils.setting_types import Positive


class ShareCores(pl.Callback):
    """Limits torch's threads to this run's share of the cores: all cores for one run, half of them for each of two.

    Two programs that each use as many threads as there are cores wait for each other and become many times slower. Each
    run locks a file whose name lists its cores; the system releases the lock when the process ends. Every `seconds`, a
    run counts the other runs on its cores. The number of threads changes results by rounding only. It is left as it
    is where OMP_NUM_THREADS is set, as in a sweep, so that the same command gives the same bits.
    """

    def __init__(self, seconds: Positive = 5.0, folder: str | None = None) -> None:
        self.seconds = seconds
        self.folder = (
            Path(folder or tempfile.gettempdir()) / f"subquad-runs-{os.getuid() if hasattr(os, 'getuid') else 0}"
        )
        self.counted_at = float("-inf")
        self.own: FileLock | None = None
        self.fewest: int | None = None  # threads that this run has been limited to

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{os.getpid()}-{time.time_ns()}.{'_'.join(map(str, sorted(core_numbers())))}.lock"
        self.own = FileLock(self.folder / name)
        self.own.acquire()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if now - self.counted_at >= self.seconds and chosen_threads() is None:
            self.counted_at = now
            threads = max(1, min(usable_threads(), usable_cores() // (1 + self._neighbours())))
            torch.set_num_threads(threads)
            self.fewest = min(threads, self.fewest or threads)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.own is not None:
            self.own.release()
            Path(self.own.lock_file).unlink(missing_ok=True)
            self.own = None
        torch.set_num_threads(usable_threads())

    def _neighbours(self) -> int:
        """Number of other running runs that share a core with this one; removes the files of runs that have ended."""
        assert self.own is not None
        count = 0
        for path in self.folder.glob("*.lock"):
            if path == Path(self.own.lock_file):
                continue
            try:
                with FileLock(path, timeout=0):
                    path.unlink(missing_ok=True)
            except Timeout:
                cores = {int(core) for core in path.name.split(".")[1].split("_")}
                count += bool(cores & core_numbers())
        return count
