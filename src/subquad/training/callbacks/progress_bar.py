"""One progress line for a whole run: a bar in a terminal, a few plain lines elsewhere."""

import time
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RunProgress(pl.Callback):
    """Shows steps, time left, the training loss and the last validation metric.

    The bar is drawn at most four times a second, so that it costs nothing beside a training step. `lines` is how many
    plain lines a run prints where there is no terminal.
    """

    def __init__(self, metric: str, lines: int = 10) -> None:
        self.metric, self.lines = metric, lines
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.drawn = self.printed = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not (self.console.is_terminal and trainer.is_global_zero):
            return
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[news]}"),
        )
        self.bar = Progress(*columns, console=self.console, auto_refresh=False, transient=True)
        self.bar.start()
        total = int(trainer.estimated_stepping_batches)
        self.task = self.bar.add_task("train", total=total, completed=trainer.global_step, news="")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if self.bar is not None and now - self.drawn > 0.25:
            self.drawn = now
            self.bar.update(self.task, completed=trainer.global_step, news=self._news(trainer, outputs["loss"].item()))
            self.bar.refresh()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        done = trainer.global_step / max(1, int(trainer.estimated_stepping_batches))
        if self.bar is None and trainer.is_global_zero and done >= self.printed + 1 / self.lines:
            self.printed = done
            self.console.print(f"{done:4.0%}  step {trainer.global_step}  {self._news(trainer)}", highlight=False)

    def _news(self, trainer: pl.Trainer, loss: float | None = None) -> str:
        seen = {
            name: float(value) for name, value in trainer.callback_metrics.items() if name in ("val/loss", self.metric)
        }
        if loss is not None:
            seen = {"loss": loss} | seen
        return "  ".join(f"{name} {value:.4g}" for name, value in seen.items())

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()
