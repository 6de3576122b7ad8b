"""Progress of a whole run: a bar in a terminal, a few plain lines elsewhere."""

import time
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from subquad.utils.setting_types import Count


class RunProgress(pl.Callback):
    """Shows steps, time left, the training loss and the last validation metric.

    The bar is drawn at most four times a second, so that its cost is negligible.

    Args:
        metric: the validation metric to show beside `val/loss`.
        lines: number of plain lines that a run prints where there is no terminal.
    """

    def __init__(self, metric: str, lines: Count = 10) -> None:
        self.metric, self.lines = metric, lines
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.drawn_at = 0.0
        self.printed_at = 0.0
        """Fraction of the training steps at the last plain line."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not (self.console.is_terminal and trainer.is_global_zero):
            return
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
        )
        self.bar = Progress(*columns, console=self.console, auto_refresh=False, transient=True)
        self.bar.start()
        total = int(trainer.estimated_stepping_batches)
        self.task = self.bar.add_task("train", total=total, completed=trainer.global_step, metrics="")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if self.bar is not None and now - self.drawn_at > 0.25:
            self.drawn_at = now
            metrics = self._metrics(trainer, outputs["loss"].item())
            self.bar.update(self.task, completed=trainer.global_step, metrics=metrics)
            self.bar.refresh()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        done = trainer.global_step / max(1, int(trainer.estimated_stepping_batches))
        if self.bar is None and trainer.is_global_zero and done >= self.printed_at + 1 / self.lines:
            self.printed_at = done
            self.console.print(f"{done:4.0%}  step {trainer.global_step}  {self._metrics(trainer)}", highlight=False)

    def _metrics(self, trainer: pl.Trainer, loss: float | None = None) -> str:
        metrics = {
            name: float(value) for name, value in trainer.callback_metrics.items() if name in ("val/loss", self.metric)
        }
        if loss is not None:
            metrics = {"loss": loss} | metrics
        return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()
