"""A job of Slurm works until it is killed."""

import logging
import signal
from typing import Any

import pytorch_lightning as pl

log = logging.getLogger(__name__)


class UntilKilled(pl.Callback):
    """SIGTERM does not end training.

    Slurm sends it when another job takes this one's place, and queues the job again only if it still runs when its
    period of grace is over: a job that ends by itself has failed. Lightning would stop at the next batch, and where
    processes train together its handler waits for all of them.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Not before: Lightning sets its own handlers after `setup`, and takes them back itself.
        signal.signal(signal.SIGTERM, self._go_on)

    on_test_start = on_train_start

    def _go_on(self, number: int, frame: Any) -> None:
        log.warning("SIGTERM: going on until the job is killed; it goes on later from its last checkpoint.")
