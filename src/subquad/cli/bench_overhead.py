"""Overhead of the framework: seconds per epoch of a run, compared with a plain PyTorch loop over the same batches.

    python scripts/bench_overhead.py                               # softmax on JapaneseVowels
    python scripts/bench_overhead.py attention=dba task=uea/basic_motions
    python scripts/bench_overhead.py public=<clone>                # also compare with the code of mvts_transformer
    taskset -c 0 python scripts/bench_overhead.py                  # on one core

Both train the same network on the same batches with the same optimiser and gradient clipping, and validate after the
same epochs; the framework also logs, checks for NaN and writes metrics.csv. It writes checkpoints every ten seconds and
after each epoch that is the best so far. Here only the first epoch is made the best, because most epochs of a run are
not. `public` is a clone of https://github.com/gzerveas/mvts_transformer: its model, batches, optimiser, training,
validation and checkpoints, on the same rows, with the sizes of the recipe mvts.
"""

import contextlib
import importlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import matplotlib.cm
import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

from subquad.config.compose import compose_run
from subquad.config.overrides import as_override
from subquad.training.lightning_data import TrainedOn
from subquad.training.trainer import build_trainer
from subquad.utils.cores import usable_cores
from subquad.utils.errors import UserError
from subquad.utils.log_filters import quieten

EPOCHS, ROUNDS = 8, 7


class _EpochTimes(pl.Callback):
    """Measures the seconds between the starts of epochs: training, validation, logging and checkpoints."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.starts.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        return [b - a for a, b in zip(self.starts, self.starts[1:], strict=False)]


def main() -> None:
    """Alternates the loops and prints the median time of an epoch of each, and the framework's time relative to it."""
    quieten()
    torch.set_num_threads(usable_cores())
    clone = next((arg.partition("=")[2] for arg in sys.argv[1:] if arg.startswith("public=")), None)
    overrides = [arg for arg in sys.argv[1:] if not arg.startswith("public=")]
    loops: dict[str, Callable[[DictConfig], list[float]]] = {"framework": _framework, "bare loop": _bare}
    if clone:
        loops["public code"] = partial(_public, Path(clone))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        rounds = [{name: _medians(loop(_config(overrides))) for name, loop in loops.items()} for _ in range(ROUNDS)]
    table = Table(title=f"Seconds of an epoch, {torch.get_num_threads()} threads, {ROUNDS} rounds")
    for heading in ("loop", "training", "framework's ratio", "with a validation", "framework's ratio"):
        table.add_column(heading, justify="right")
    for name in loops:
        cells = []
        for kind in (0, 1):
            ratios = [times["framework"][kind] / times[name][kind] for times in rounds]
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})"
            cells += [f"{statistics.median(times[name][kind] for times in rounds):.4f}", spread]
        table.add_row(name, *cells)
    Console(soft_wrap=True).print(table)


def _medians(seconds: list[float]) -> tuple[float, float]:
    """Median seconds of epochs without and with a validation; the first and the last epoch are left out."""
    return statistics.median(seconds[2 : EPOCHS - 1 : 2]), statistics.median(seconds[1 : EPOCHS - 1 : 2])


def _validates(epoch: int) -> bool:
    return epoch == 0 or epoch % 2 == 1


def _config(overrides: Sequence[str]) -> DictConfig:
    folder = tempfile.mkdtemp()
    overrides = ["attention=softmax", "task=uea/japanese_vowels", *overrides, f"paths.outputs={as_override(folder)}"]
    overrides += [f"limits.epochs={EPOCHS}", "trainer.check_val_every_n_epoch=2", "callbacks.best.mode=min"]
    overrides += [f"+callbacks.cores.folder={as_override(folder)}"]
    settings: Any = OmegaConf.to_container(compose_run(overrides), resolve=True)
    return OmegaConf.create(settings)


def _framework(config: DictConfig) -> list[float]:
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    module = instantiate(config.task.module, _convert_="all")(spec=data.spec)
    trainer = build_trainer(config, data)
    clock = _EpochTimes()
    trainer.callbacks.insert(0, clock)  # type: ignore[attr-defined]
    trainer.fit(module, TrainedOn(data))
    return clock.seconds


def _bare(config: DictConfig) -> list[float]:
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    task = instantiate(config.task.module, _convert_="all")(spec=data.spec)
    network, train, val = task.network, data.train_dataloader(), data.val_dataloader()
    optimizer = task.make_optimizer(network.parameters())
    seconds = []
    for epoch in range(EPOCHS):
        started = time.perf_counter()
        train.batch_sampler.set_epoch(epoch)
        network.train()
        for batch in train:
            optimizer.zero_grad()
            task.loss(network(*batch.network_inputs), batch.target).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.trainer.gradient_clip_val)
            optimizer.step()
        if _validates(epoch):
            network.eval()
            with torch.no_grad():
                right = sum((network(*batch.network_inputs).argmax(-1) == batch.target).sum().item() for batch in val)
            assert right >= 0
        seconds.append(time.perf_counter() - started)
    return seconds


def _public(clone: Path, config: DictConfig) -> list[float]:
    """Seconds per epoch of the loop in the clone's main.py on the same rows; packages it does not need are mocked."""
    running, rows, models, optimizers, losses, utils = _modules(clone, "running", *_MODULES)
    running.np = SimpleNamespace(**vars(np) | {"savez": MagicMock()})  # current numpy rejects batches of unequal size
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    size, spec, batch = config.recipe.size, data.spec, data.batch_size
    model = models.TSTransformerEncoderClassiregressor(
        spec.channels, spec.max_len, size.dim, size.heads, size.layers, size.ffn, spec.classes,
        dropout=config.backbone.dropout, pos_encoding="learnable", activation="gelu", norm="BatchNorm",
    )  # fmt: skip
    for layer in model.transformer_encoder.layers:  # torch passes one argument more than in 2022
        layer.forward = lambda *args, plain=layer.forward, is_causal=None, **named: plain(*args, **named)
    optimizer = optimizers.RAdam(model.parameters(), lr=config.optimizer.lr)
    cpu, loss = torch.device("cpu"), losses.NoFussCrossEntropyLoss(reduction="none")

    def loader(split: str) -> Any:
        series = data.splits[split]
        numbers = np.arange(len(series))
        frames = SimpleNamespace(
            feature_df=pd.DataFrame(np.asarray(series.values), index=np.repeat(numbers, series.lengths)),
            labels_df=pd.DataFrame(series.targets.astype(np.int8)),
        )
        cases = rows.ClassiregressionDataset(frames, numbers)
        collate = partial(rows.collate_superv, max_len=model.max_len)
        return DataLoader(cases, batch, shuffle=split == "train", pin_memory=True, collate_fn=collate)

    trainer = running.SupervisedRunner(model, loader("train"), cpu, loss, optimizer, console=False, print_interval=1)
    evaluator = running.SupervisedRunner(model, loader("val"), cpu, loss, console=False, print_interval=1)
    folder = str(config.paths.outputs)
    settings = {"key_metric": "accuracy", "save_dir": folder, "pred_dir": folder}
    best: tuple[Any, float] = {}, 1e16  # never reached
    seconds = []
    for epoch in range(EPOCHS):
        started = time.perf_counter()
        trainer.train_epoch(epoch)
        if _validates(epoch):
            best = running.validate(evaluator, MagicMock(), settings, *best, epoch)[1:]
        utils.save_model(f"{folder}/model_last.pth", epoch, model, optimizer)
        seconds.append(time.perf_counter() - started)
    return seconds


_MODULES = ("datasets.dataset", "models.ts_transformer", "optimizers", "models.loss", "utils.utils")
_UNUSED = ("ipdb", "xlrd", "xlwt", "xlutils", "xlutils.copy", "tabulate")


def _modules(clone: Path, *names: str) -> list[Any]:
    """Imports modules of the clone."""
    sys.path.insert(0, str((clone / "src").resolve()))
    for name in _UNUSED:
        sys.modules.setdefault(name, MagicMock())
    setattr(matplotlib.cm, "get_cmap", matplotlib.colormaps.get)  # noqa: B010  removed from matplotlib
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(f"There is no clone of gzerveas/mvts_transformer in {clone} ({error}).") from error
