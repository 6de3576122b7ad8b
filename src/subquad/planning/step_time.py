"""Times training steps of a configuration on random inputs and stores the result, one file for each device."""

import dataclasses
import gc
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from subquad.config.compose import compose_run
from subquad.config.settings import check_settings, without_weights
from subquad.measure import machine
from subquad.measure.inputs import random_batch
from subquad.measure.step_memory import USABLE, microbatches, sees_whole_batch, states_of, step_peak
from subquad.planning.cost import Device, Setting, StepTime
from subquad.planning.model_size import meta_module, spec_of
from subquad.records import fingerprint, write_json
from subquad.training.callbacks.refresh import RefreshAttention
from subquad.training.runtime import Runtime
from subquad.utils.byte_sizes import readable_bytes
from subquad.utils.cores import usable_cores
from subquad.utils.display import counted
from subquad.utils.errors import UserError, first_line, memory_error
from subquad.utils.free_memory import free_memory
from subquad.utils.log_filters import quieten
from subquad.utils.malloc import return_freed_memory, spared_memory


def measure_steps(setting: Setting, outputs: Path, steps: int = 3, peaks: Mapping[str, int] = {}) -> StepTime:
    """Builds the model of a configuration and times training steps, after two warm-up steps.

    Uses the loss, optimiser, precision, gradient clipping and attention refreshes of the run. A batch that does not fit
    is timed by its microbatches.

    Args:
        peaks: peak bytes of a step with the whole batch on a CPU ("cpu") and on a GPU ("cuda"), if they are known.

    Raises:
        UserError: the model depends on data that are missing here, or the device has too little memory; then nothing is
            built.
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
    clock = _Clock(steps)
    trainer_settings = {key: settings["trainer"][key] for key in _TRAINER_SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            **trainer_settings, devices=1, callbacks=[RefreshAttention(), clock], logger=False,
            enable_checkpointing=False, limit_val_batches=0, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder,
        )  # fmt: skip
        count, spare = _microbatches(setting, spec, trainer.strategy.root_device, peaks)
        rows = setting.batch // count
        try:
            module = instantiate(without_weights(setting.module), _convert_="all")(spec=spec)
            batches: Any = [random_batch(module.network, spec, rows)] * (clock.warmup + steps)
            loader: Any = DataLoader(batches, batch_size=None)
            with spared_memory(spare), Runtime.of(config, module.network, trainer).applied(module.network):
                trainer.fit(module, loader, loader)
        except (MemoryError, RuntimeError) as error:
            raise (memory_error(error) or error) from None
    measured = StepTime(
        family=setting.family, seconds=count * statistics.median(clock.seconds), steps=steps,
        batch_size=setting.batch, parameters=module.parameter_count, overrides=list(setting.overrides),
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


def _microbatches(setting: Setting, spec: Any, device: torch.device, known: Mapping[str, int]) -> tuple[int, bool]:
    """The smallest number of microbatches that fits the free memory, and whether it takes more than half of that.

    Batch normalisation needs the whole batch.

    Raises UserError if none fits, or if the memory cannot be estimated.
    """
    gc.collect()
    return_freed_memory()
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    if free is None:
        return 1, False
    peaks = {setting.batch: known[device.type]} if device.type in known else {}
    module = meta_module(setting, spec)

    def peak(rows: int) -> int:
        if rows not in peaks:
            states = states_of(module.make_optimizer)
            peaks[rows] = step_peak(module, spec, rows, setting.precision, states, setting.batch, device.type)
        return peaks[rows]

    try:
        if sees_whole_batch(module):
            count = 1 if peak(setting.batch) <= USABLE * free else None
        else:
            count = microbatches(peak, setting.batch, free)
    except Exception as error:  # of any model, also of the user's own
        raise UserError(f"Its memory cannot be estimated ({first_line(error)}).") from error
    if count is None:
        rows, needed = min(peaks.items())
        raise UserError(
            f"A step of {counted(rows, 'row')} needs {readable_bytes(needed)} by estimate, and {readable_bytes(free)} "
            "are free here; plan it on a machine with more memory, or with trainer.precision=bf16-mixed or a smaller "
            "recipe.batch_size."
        )
    return count, device.type == "cpu" and peak(setting.batch // count) > free / 2


def _write(measured: StepTime, outputs: Path) -> None:
    device = fingerprint(dataclasses.asdict(Device.of(measured.machine)))
    write_json(outputs / "measured" / "steps" / f"{measured.family}-{device}.json", dataclasses.asdict(measured))
