"""Times training steps of a configuration on random inputs and stores the result, one file for each device."""

import dataclasses
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from subquad.backbones.layerwise import recompute_layers
from subquad.config.compose import compose_run
from subquad.config.settings import check_settings, without_weights
from subquad.measure import machine
from subquad.measure.inputs import random_batch
from subquad.planning.cost import Device, Setting, StepTime
from subquad.planning.model_size import meta_module, spec_of
from subquad.records import fingerprint, write_json
from subquad.training.callbacks.refresh import RefreshAttention
from subquad.training.memory_plan import plan_memory
from subquad.training.runtime import Runtime
from subquad.utils.cores import usable_threads
from subquad.utils.errors import UserError, memory_error
from subquad.utils.log_filters import quieten
from subquad.utils.malloc import return_freed_memory, spared_memory


def measure_steps(setting: Setting, outputs: Path, steps: int = 3) -> StepTime:
    """Builds the model of a configuration and times training steps, after two warm-up steps.

    Uses the loss, optimiser, precision, gradient clipping and attention refreshes of the run, and what makes it fit the
    memory: recomputed layers, and microbatches. Each of these is timed as a step, with the optimiser's.

    Raises:
        UserError: the model depends on data that are missing here, or the device has too little memory; then nothing is
            built.
    """
    quieten()
    torch.set_num_threads(usable_threads())
    config = compose_run([*setting.overrides, "seed=0"])
    settings: Any = OmegaConf.to_container(config, resolve=True)
    for section in ("attention", "backbone", "data"):
        check_settings(section, settings[section])
    torch.manual_seed(0)
    spec = spec_of(setting.data, prepare=True)
    if spec is None:
        raise UserError(f"The model of {setting.task} depends on its data, which are missing here.")
    clock = _Clock(steps)
    trainer_settings = {key: settings["trainer"][key] for key in _TRAINER_SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            **trainer_settings, devices=1, callbacks=[clock, RefreshAttention()], logger=False,
            enable_checkpointing=False, limit_val_batches=0, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder,
        )  # fmt: skip
        gc.collect()
        return_freed_memory()
        plan = plan_memory(
            config, trainer, meta_module(setting.module, spec), spec, setting.data["batch_size"], lambda: setting.batch
        )
        rows = -(-setting.batch // plan.microbatches)
        try:
            module = instantiate(without_weights(setting.module), _convert_="all")(spec=spec)
            if plan.recompute:
                recompute_layers(module.network)
            batches: Any = [random_batch(module.network, spec, rows)] * (clock.warmup + steps)
            loader: Any = DataLoader(batches, batch_size=None)
            with spared_memory(plan.frugal), Runtime.of(config, module.network, trainer).applied(module.network):
                trainer.fit(module, loader, loader)
        except (MemoryError, RuntimeError) as error:
            raise (memory_error(error) or error) from None
    measured = StepTime(
        family=setting.family, seconds=plan.microbatches * statistics.median(clock.seconds), steps=steps,
        batch_size=setting.batch, parameters=module.parameter_count, overrides=list(setting.overrides),
        memory=plan.measures,
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


def _write(measured: StepTime, outputs: Path) -> None:
    device = fingerprint(dataclasses.asdict(Device.of(measured.machine)))
    write_json(outputs / "measured" / "steps" / f"{measured.family}-{device}.json", dataclasses.asdict(measured))
