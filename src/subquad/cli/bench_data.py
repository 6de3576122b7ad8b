"""Compares the throughput of data loading with that of training, to show whether loading limits training.

    python scripts/bench_data.py                                       # ListOps and digits, two workers
    python scripts/bench_data.py task=[cifar/cifar10] workers=4 data=synthetic
    python scripts/bench_data.py task=all data=synthetic seconds=1

For each task: rows per second of the training loader, rows per second of training steps (forward, backward, optimiser)
on batches in memory (kept=8 of them), and their ratio. The first batches, which start the workers, are not counted. All
other overrides are those of train.py.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from subquad.cli.command import listed, script_settings
from subquad.config.choices import options
from subquad.config.compose import compose_run
from subquad.data.split_data import SplitData
from subquad.specs import Batch
from subquad.utils.cores import usable_threads
from subquad.utils.display import counted

SETTINGS: dict[str, Any] = {"task": ["lra/listops", "digits"], "workers": 2, "seconds": 5.0, "kept": 8}


def main() -> None:
    """Prints a table with one row per task."""
    overrides = [arg for arg in sys.argv[1:] if arg.partition("=")[0] not in SETTINGS]
    config = script_settings(SETTINGS, [arg for arg in sys.argv[1:] if arg not in overrides])
    torch.set_num_threads(usable_threads())
    table = Table(
        title=f"Rows per second, {counted(config.workers, 'worker')}, {counted(torch.get_num_threads(), 'thread')}"
    )
    for heading in ("task", "attention", "batch", "loader", "training", "loader / training"):
        table.add_column(heading, justify="left" if heading in ("task", "attention") else "right")
    all_tasks = [task for task in options("task") if not task.endswith("/custom")]
    for task in all_tasks if config.task == "all" else listed(config.task):
        table.add_row(*_cells(task, overrides, config))
    Console(width=110).print(table)


def _cells(task: str, overrides: list[str], config: Any) -> list[str]:
    scale = [] if any(arg.startswith("scale=") for arg in overrides) else ["scale=laptop"]
    composed = compose_run([f"task={task}", *scale, *overrides])
    run: Any = OmegaConf.create(OmegaConf.to_container(composed, resolve=True))
    run.data.num_workers = config.workers
    data: SplitData = instantiate(run.data, _convert_="all")
    data.prepare_data()
    module = instantiate(run.task.module, _convert_="all")(spec=data.spec)
    stream = _endless(data)
    kept = list(itertools.islice(stream, config.kept))
    loader = _rate(stream, lambda batch: None, config.seconds)
    training = _rate(itertools.cycle(kept), _step(module), config.seconds)
    attention = Path(composed.paths.run).parent.name
    return [task, attention, str(len(kept[0])), f"{loader:,.0f}", f"{training:,.0f}", f"{loader / training:.1f}"]


def _endless(data: SplitData) -> Iterator[Batch]:
    """Training batches of endless epochs."""
    loader: Any = data.train_dataloader()
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def _step(module: Any) -> Callable[[Batch], None]:
    """A function that performs one training step on a batch."""
    optimizer = module.make_optimizer(module.parameters())
    module.train()

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        module.training_step(batch).backward()
        optimizer.step()

    return step


def _rate(batches: Iterable[Batch], use: Callable[[Batch], None], seconds: float) -> float:
    """Rows per second, measured over at least `seconds`; the first batch is not counted."""
    rows, started = 0, None
    for batch in batches:
        use(batch)
        now = time.perf_counter()
        if started is None:
            started = now
            continue
        rows += len(batch)
        if now - started >= seconds:
            break
    assert started is not None
    return rows / (now - started)
