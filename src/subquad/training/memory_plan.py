"""Makes a run fit its memory: recomputes layers, divides batches into microbatches, evaluates fewer rows at a time."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from torch import Tensor, distributed

from subquad.backbones.layerwise import recompute_layers
from subquad.data.split_data import SplitData
from subquad.measure.inputs import random_batch
from subquad.measure.step_memory import (
    USABLE,
    cheapest,
    evaluation_peak,
    in_words,
    sees_whole_batch,
    states_of,
    step_peak,
)
from subquad.specs import Site
from subquad.tasks.supervised import Supervised
from subquad.training.strategies import FullySharded
from subquad.utils.byte_sizes import bytes_of, readable_bytes
from subquad.utils.compiling import check_microbatches
from subquad.utils.display import counted
from subquad.utils.errors import UserError, first_line
from subquad.utils.free_memory import free_memory, share_of_gpu
from subquad.utils.malloc import KEPT

log = logging.getLogger(__name__)

SETTING = "trainer.accumulate_grad_batches"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a run fits its memory.

    Attributes:
        recompute: whether layers are recomputed in the backward pass.
        microbatches: number of microbatches of a batch.
        eval_limit: rows of an evaluation batch at most; None for as many as the settings say.
        frugal: whether freed memory is to be returned at once, because keeping it could take more than there is.
        estimate: the memory that a training step needs as it is set, and what there is for it; empty if unknown.
        measures: what was done; empty if nothing was.
    """

    recompute: bool
    microbatches: int
    eval_limit: int | None = None
    frugal: bool = False
    estimate: str = ""
    measures: str = ""

    def apply(self, trainer: pl.Trainer, module: Supervised, data: SplitData, settings: dict[str, Any]) -> None:
        """Sets up a run, and writes what was chosen into its settings; one of several processes once they have met."""
        if trainer.world_size > 1:
            trainer.callbacks.append(_SharedPlan(self, data, settings))  # type: ignore[attr-defined]
        else:
            self.set_up(trainer, module, data, settings)

    def set_up(self, trainer: pl.Trainer, module: Supervised, data: SplitData, settings: dict[str, Any]) -> None:
        """Applies the plan to this process."""
        settings["checkpoint_activations"] = self.recompute
        settings["trainer"]["accumulate_grad_batches"] = trainer.accumulate_grad_batches = self.microbatches
        data.eval_limit = self.eval_limit
        if self.recompute:
            recompute_layers(module.network)


class _SharedPlan(pl.Callback):
    """Applies the plan that suits the memory of all processes of a run, before it is trained."""

    def __init__(self, plan: MemoryPlan, data: SplitData, settings: dict[str, Any]) -> None:
        self.plan, self.data, self.settings = plan, data, settings

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        plans: list[Any] = [None] * trainer.world_size
        distributed.all_gather_object(plans, self.plan)
        self.plan = MemoryPlan(
            any(plan.recompute for plan in plans),
            max(plan.microbatches for plan in plans),
            min((plan.eval_limit for plan in plans if plan.eval_limit), default=None),
        )
        self.plan.set_up(trainer, pl_module, self.data, self.settings)


def given_microbatches(setting: Any) -> int:
    """The microbatches that `trainer.accumulate_grad_batches` asks for; 1 for auto, and for a size such as 24GB.

    Raises UserError for other values.
    """
    if isinstance(setting, int) and not isinstance(setting, bool):
        if setting < 1:
            raise UserError(f"{SETTING} is {setting}; it must be a whole number of at least 1.")
        return setting
    if setting != "auto":
        try:
            bytes_of(setting, SETTING)
        except UserError:
            raise UserError(
                f"{SETTING} is {setting}; it must be a whole number of at least 1, auto, or a size such as 24GB."
            ) from None
    return 1


def plan_memory(
    config: DictConfig, trainer: pl.Trainer, module: Supervised, spec: Any, batch: int, rows: Callable[[], int],
    evaluated: int = 0,
) -> MemoryPlan:  # fmt: skip
    """The cheapest way to train in the memory that a size as `trainer.accumulate_grad_batches` states or that is free.

    In this order: as set; layers recomputed, which changes no bit; microbatches, which change rounding and dropout
    masks; both. Batches are not divided further where batch normalisation takes its statistics from them, or where CUDA
    graphs would overwrite gradients. Nothing is traced if the memory is plenty.

    Args:
        module: on any device; its weights are not read.
        batch: rows of a training batch.
        rows: returns the number of training rows; called where a whole batch may not fit.
        evaluated: rows of an evaluation batch; 0 without evaluations.

    Raises UserError if nothing fits.
    """
    setting = config.trainer.accumulate_grad_batches
    asked = MemoryPlan(bool(config.checkpoint_activations), given_microbatches(setting))
    memory = _memory(setting, trainer)
    if memory is None:
        return asked
    step = _Step(module, spec, trainer, batch, batch)
    most = step.bound(max(step.rows(asked.microbatches), evaluated))
    if KEPT * most <= memory:
        return replace(asked, estimate=f"less than {readable_bytes(most)} of {readable_bytes(memory)}")
    step.whole = min(rows(), batch)
    try:
        plan = _cheapest(step, asked, memory, partial(_divisible, config, module))
        if plan.recompute or evaluated > step.rows(asked.microbatches):
            plan = replace(plan, eval_limit=step.eval_limit(evaluated, memory))
    except UserError:
        raise
    except Exception as error:  # a model of the user may need values where a trace has none
        unknown = f"The memory of this model cannot be estimated ({first_line(error)})"
        if isinstance(setting, int):
            log.info("%s.", unknown)
            return asked
        raise UserError(f"{unknown}; set {SETTING} to a number.") from error
    if plan.measures:
        log.info("This run needs %s: %s.", plan.estimate, plan.measures)
    return plan


def limit_evaluation(trainer: pl.Trainer, module: Supervised, data: SplitData) -> None:
    """Makes evaluation batches of data as small as the free memory requires."""
    memory = _memory(1, trainer)
    step = _Step(module, data.spec, trainer, 1, 1)
    if memory is not None and step.bound(data.eval_batch_size) > USABLE * memory:
        step.states = None
        data.eval_limit = step.eval_limit(data.eval_batch_size, memory)


def _memory(setting: Any, trainer: pl.Trainer) -> int | None:
    """Bytes for a process: those that the setting states, its part of the smallest GPU, or free on a CPU.

    None if unknown.
    """
    if isinstance(setting, str) and setting != "auto":
        return bytes_of(setting, SETTING)
    device = trainer.strategy.root_device.type
    if device == "cuda":
        gpus = range(torch.cuda.device_count())
        return share_of_gpu(min(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus))
    free = free_memory() if device == "cpu" else None
    return free and free // max(1, trainer.num_devices)


def _divisible(config: DictConfig, module: Supervised) -> bool:
    """Whether a batch may be divided: nothing in the model sees all of it, and no CUDA graph holds gradients."""
    try:
        check_microbatches(config.get("compile_model", False), 2)
    except UserError:
        return False
    return not sees_whole_batch(module)


def _cheapest(step: "_Step", asked: MemoryPlan, memory: int, divisible: Callable[[], bool]) -> MemoryPlan:
    peaks: dict[tuple[bool, int], int] = {}

    def peak(again: bool, count: int) -> int:
        if (again, count) not in peaks:
            peaks[again, count] = step.peak(again, count * asked.microbatches)
        return peaks[again, count]

    batch = step.batch // (step.processes * asked.microbatches)
    way = cheapest(peak, batch, memory, divisible, asked.recompute)
    again, count = way or min(peaks, key=lambda way: peaks[way])
    least, total = peaks[again, count], count * asked.microbatches
    if way is None and least > memory:
        raise _too_large(least, memory, f"with its layers recomputed and {counted(step.rows(total), 'row')} at a time")
    measures = in_words(again > asked.recompute, total if count > 1 else 1, step.rows(total))
    frugal = step.device == "cpu" and KEPT * least > memory
    estimate = f"{readable_bytes(peak(asked.recompute, 1))} of {readable_bytes(USABLE * memory)}"
    return MemoryPlan(again, total, None, frugal, estimate, measures and f"{measures} ({readable_bytes(least)})")


def _too_large(needed: int, memory: int, how: str) -> UserError:
    return UserError(
        f"A training step of this run needs {readable_bytes(needed)} by estimate, {how}, and there are "
        f"{readable_bytes(memory)}; give it more memory (fewer runs at a time, a GPU, another machine), or train "
        "another cell: trainer.precision=bf16-mixed, a smaller recipe.batch_size, or a smaller model. If more is free, "
        f"say so: {SETTING}=24GB."
    )


class _Step:
    """The memory of a training step, and of an evaluation, by their rows.

    Args:
        batch: rows of a batch of the settings.
        whole: rows of a batch of the data, which may have fewer.
    """

    def __init__(self, module: Supervised, spec: Any, trainer: pl.Trainer, batch: int, whole: int) -> None:
        self.module, self.spec, self.batch, self.whole = module, spec, batch, whole
        self.processes, self.precision = trainer.world_size, str(trainer.precision)
        self.device = "cuda" if trainer.strategy.root_device.type == "cuda" else "cpu"
        self.states: int | None = states_of(module.make_optimizer)
        self.shared = isinstance(trainer.strategy, FullySharded)

    def rows(self, count: int) -> int:
        """Rows of a process in a microbatch, of which a batch has `count`."""
        return -(-self.whole // (self.processes * count))

    def peak(self, again: bool, count: int) -> int:
        """Peak bytes of a process with `count` microbatches; `again`: if layers are recomputed."""
        assert self.states is not None
        arguments = self.module, self.spec, self.rows(count), self.precision, self.states, self.whole, self.device
        return step_peak(*arguments, again) - self._elsewhere

    def eval_limit(self, rows: int, memory: int) -> int | None:
        """Rows of an evaluation batch that fit, by halving; None if all of `rows` fit."""
        limit = rows
        while limit > 1 and self._evaluation(limit) > USABLE * memory:
            limit = -(-limit // 2)
        return None if limit == rows else limit

    def _evaluation(self, rows: int) -> int:
        arguments = self.module, self.spec, rows, self.precision, self.device, self.states
        return evaluation_peak(*arguments) - self._elsewhere

    @property
    def _elsewhere(self) -> int:
        """Bytes of weights, gradients and the optimiser's states that other processes hold (FSDP)."""
        held = (2 + (self.states or 0)) * sum(p.numel() * p.element_size() for p in self.module.parameters())
        return held * (self.processes - 1) // self.processes if self.shared else 0

    def bound(self, rows: int) -> int:
        """Bytes that no step exceeds, without a trace: multiples of tokens by features and of pairs of tokens."""
        inputs = [x for x in random_batch(self.module.network, self.spec, 1).network_inputs if isinstance(x, Tensor)]
        tokens = max(256, sum(x.shape[1] if x.ndim < 4 else x.shape[2:].numel() for x in inputs))
        weights = [*self.module.parameters(), *self.module.buffers()]
        features = sum(w.shape[0] if w.ndim == 2 else max(w.shape) for w in weights if w.ndim > 1)
        sites: list[Any] = [getattr(part, "site", None) for part in self.module.modules()]
        heads = sum(site.heads for site in sites if isinstance(site, Site))
        numbers = rows * tokens * (16 * features + 8 * tokens * heads)
        return 4 * (numbers + 4 * sum(weight.numel() for weight in weights))
