"""A logger that writes the run's history to metrics.csv, one row for each logged step."""

import csv
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from subquad.utils.atomic import atomic_write


class MetricsCSV(Logger):
    """Writes metrics to `path`, atomically. A resumed run starts with the rows of its last checkpoint."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)
        self.rows: dict[int, dict[str, float]] = {}
        self.unsaved = False

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the run's folder holds the configuration."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        step = step or 0
        for repeated in [s for s in self.rows if s > step]:
            del self.rows[repeated]
        self.rows.setdefault(step, {}).update(metrics)
        self.unsaved = True

    @rank_zero_only
    def save(self) -> None:
        if not self.unsaved:
            return
        names = sorted({name for row in self.rows.values() for name in row})
        with atomic_write(self.path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["step", *names])
            for step, row in sorted(self.rows.items()):
                writer.writerow([step, *(_text(row.get(name)) for name in names)])
        self.unsaved = False

    def finalize(self, status: str) -> None:
        self.save()


class KeepHistory(pl.Callback):
    """Stores the rows of metrics.csv in the last checkpoint, so that resuming does not depend on that file."""

    def __init__(self, logger: MetricsCSV) -> None:
        self.logger = logger

    def state_dict(self) -> dict[str, Any]:
        return {"rows": {step: dict(row) for step, row in self.logger.rows.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.logger.rows, self.logger.unsaved = state_dict["rows"], True
        self.logger.save()


def _text(value: float | None) -> str:
    """The number with all digits, so that reading and writing the file does not change it; empty for None."""
    return "" if value is None else repr(float(value)).removesuffix(".0")
