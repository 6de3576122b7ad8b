"""Times training steps of a configuration on random inputs and stores the result, one file for each device."""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pytorch_lightning.accelerators import CPUAccelerator
from torch.utils.data import DataLoader

from subquad.config.compose import compose_run
from subquad.config.settings import check_settings, without_weights
from subquad.measure import machine
from subquad.measure.inputs import random_batch
from subquad.measure.memory import LiveTensors
from subquad.planning.cost import Device, Setting, StepTime
from subquad.planning.model_size import spec_of
from subquad.records import fingerprint, write_json
from subquad.training.callbacks.refresh import RefreshAttention
from subquad.training.runtime import Runtime
from subquad.utils.cores import usable_cores
from subquad.utils.errors import UserError, first_line
from subquad.utils.log_filters import quieten


def measure_steps(setting: Setting, outputs: Path, steps: int = 3) -> StepTime:
    """Builds the model of a configuration and times training steps, after two warm-up steps.

    Uses the loss, optimiser, precision, gradient clipping and attention refreshes of the run. Raises UserError if the
    model depends on data that are missing here, or if the device has too little memory.
    """
    quieten()
    torch.set_num_threads(usable_cores())
    config = compose_run([*setting.overrides, "seed=0"])
    settings: Any = OmegaConf.to_container(config, resolve=True)
    for section in ("attention", "backbone", "data"):
        check_settings(section, settings[section])
    torch.manual_seed(0)
    spec = spec_of(setting.data, prepare=True)
    if spec is None:
        raise UserError(f"The model of {setting.task} depends on its data, which are missing here.")
    module = instantiate(without_weights(setting.module), _convert_="all")(spec=spec)
    clock = _Clock(steps)
    trainer_settings = {key: settings["trainer"][key] for key in _TRAINER_SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            **trainer_settings, devices=1, callbacks=[RefreshAttention(), clock], logger=False,
            enable_checkpointing=False, limit_val_batches=0, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder,
        )  # fmt: skip
        size = int(settings["data"]["batch_size"])
        try:
            _check_memory(module, spec, size, trainer)
            batches: Any = [random_batch(module.network, spec, size)] * (clock.warmup + steps)
            loader: Any = DataLoader(batches, batch_size=None)
            with Runtime.of(config, module.network, trainer).applied(module.network):
                trainer.fit(module, loader, loader)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise UserError(f"A batch of {size} does not fit the memory here ({first_line(error)}).") from None
    measured = StepTime(
        family=setting.family, seconds=statistics.median(clock.seconds), steps=steps, batch_size=size,
        parameters=module.parameter_count, overrides=list(setting.overrides),
        **machine.facts(),
    )  # fmt: skip
    if module.device.type != "cuda" and not clock.gpu:
        measured.machine["gpu"] = None
    _write(measured, outputs)
    return measured


_TRAINER_SETTINGS = ("accelerator", "precision", "max_epochs", "max_steps", "gradient_clip_val")


class _Clock(pl.Callback):
    """Times steps and ends training after the last one."""

    warmup = 2

    def __init__(self, steps: int) -> None:
        self.steps, self.seconds, self.started, self.count, self.gpu = steps, list[float](), 0.0, 0, False

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.gpu = pl_module.device.type == "cuda"
        if self.gpu:
            torch.cuda.synchronize()
        self.started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.gpu:
            torch.cuda.synchronize()
        self.count += 1
        if self.count > self.warmup:
            self.seconds.append(time.perf_counter() - self.started)
        trainer.should_stop = self.count >= self.warmup + self.steps


def _check_memory(module: Any, spec: Any, size: int, trainer: pl.Trainer) -> None:
    """Raises MemoryError if a CPU has too little memory, because the system would kill the process."""
    free = _free_memory()
    if free is None or not isinstance(trainer.accelerator, CPUAccelerator):
        return
    rows = 2  # batch normalisation needs more than one
    batch = random_batch(module.network, spec, rows)
    with LiveTensors() as memory:
        module.loss(module(batch), module.targets(batch)).backward()
    module.zero_grad(set_to_none=True)
    needed = memory.peak * size / rows
    if needed > free:
        raise MemoryError(f"a step takes about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free")


def _free_memory() -> int | None:
    """Available memory in bytes; None where the system does not provide /proc/meminfo."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _write(measured: StepTime, outputs: Path) -> None:
    device = fingerprint(dataclasses.asdict(Device.of(measured.machine)))
    write_json(outputs / "measured" / "steps" / f"{measured.family}-{device}.json", dataclasses.asdict(measured))
