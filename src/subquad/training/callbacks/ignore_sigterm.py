"""Keeps a Slurm job training after SIGTERM."""

import logging
import signal
from typing import Any

import pytorch_lightning as pl

log = logging.getLogger(__name__)


class IgnoreSigterm(pl.Callback):
    """Ignores SIGTERM during training.

    Slurm sends SIGTERM when it preempts a job, and requeues the job only if it is still running when the grace period
    ends; a job that exits by itself counts as failed. Lightning would stop at the next batch, and in distributed
    training its handler waits for all processes.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Not in `setup`: Lightning installs its own handlers after it. Lightning also restores the previous handlers.
        signal.signal(signal.SIGTERM, self._ignore)

    on_test_start = on_train_start

    def _ignore(self, number: int, frame: Any) -> None:
        log.warning("SIGTERM ignored: training continues until the job is killed and resumes from the last checkpoint.")
