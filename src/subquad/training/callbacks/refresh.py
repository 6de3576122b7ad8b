"""Refreshes the fitted or redrawn state of attention mechanisms between training steps."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from subquad.attention.base import Redrawn, Refreshable
from subquad.data.microbatches import Microbatch
from subquad.training.callbacks.guards import SeedEpochs


class RefreshAttention(pl.Callback):
    """Refreshes, before each training batch, every `Refreshable` mechanism that is due.

    Epochs are passes over the training rows here, whatever the interval between validations is.

    One forward pass of the batch without gradients refreshes the due mechanisms from the first layer to the last, so
    that each is fitted to inputs computed by the already refreshed ones before it. The pass changes nothing else: it
    uses no dropout and restores the running statistics of BatchNorm and the random generators. It runs eagerly where
    the model is compiled. It reads the whole batch of the optimiser step: with several processes or with accumulated
    microbatches, every process reads all of it, and then takes over the buffers of the first process.

    If all mechanisms that are due are `Redrawn`, there is no pass: every process draws, in the order of the layers, the
    numbers that the pass would draw in the first process.

    All state is in the mechanisms' buffers, so a resumed run gives the same numbers as an uninterrupted one.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.mechanisms = [module for module in pl_module.modules() if isinstance(module, Refreshable)]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if not self.mechanisms:
            return
        if isinstance(batch, Microbatch):
            if not batch.first:
                return
            batch_idx //= trainer.accumulate_grad_batches
        place, datamodule = (trainer.current_epoch, batch_idx), trainer.datamodule  # type: ignore[attr-defined]
        if datamodule is not None:
            place = datamodule.data.place(*place)
        due = [mechanism for mechanism in self.mechanisms if mechanism.due(*place, trainer.global_step)]
        if not due:
            return
        seed = (_first_seed(trainer) + trainer.global_step + 1) % 2**63
        if all(isinstance(mechanism, Redrawn) for mechanism in due):
            _redraw(due, seed)
            return
        if isinstance(batch, Microbatch):
            batch = datamodule.data.whole_batch(batch.whole).to(pl_module.device)
        _refresh(due, pl_module, batch, seed)
        if trainer.world_size > 1:
            _broadcast_buffers(due, trainer)


def _first_seed(trainer: pl.Trainer) -> int:
    """The seed of torch in the first process."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SeedEpochs):
            return callback.seeds(trainer.current_epoch, 0)[0]
    return trainer.strategy.broadcast(torch.initial_seed())


def _redraw(due: Sequence[Any], seed: int) -> None:
    with torch.random.fork_rng([]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for mechanism in due:
            mechanism.redraw()


def _refresh(due: Sequence[Any], model: nn.Module, batch: Any, seed: int) -> None:
    waiting = list(due)

    def refresh(attention: Any, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """called: the attention, or its twin that reads rotated heads (`core_of`) and shares its hooks and buffers."""
        if attention in waiting:  # a mechanism shared by layers is refreshed at its first use
            waiting.remove(attention)
            inputs = dict(zip(("x", "context", "masks"), args, strict=False)) | kwargs
            called.refresh(inputs["x"], inputs["context"], inputs["masks"])

    with ExitStack() as stack:
        for attention in due:
            hook = attention.register_forward_pre_hook(partial(refresh, attention), with_kwargs=True)
            stack.callback(hook.remove)
        stack.enter_context(_state_restored(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        # The generators are restored afterwards, so without a seed of its own each refresh could draw the same numbers.
        torch.manual_seed(seed)
        model(batch)


@contextmanager
def _state_restored(model: nn.Module) -> Iterator[None]:
    """Switches dropout off and keeps BatchNorm in training mode inside the block; restores all state afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    statistics = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        model.eval()
        for norm in norms:
            norm.train()
        with torch.random.fork_rng(devices):
            yield
    finally:
        for module, training in modes:
            module.training = training
        for buffer, value in statistics:
            buffer.copy_(value)


def _broadcast_buffers(due: Sequence[Any], trainer: pl.Trainer) -> None:
    """Copies the buffers of the first process to all others, through main memory because devices differ."""
    buffers = [buffer for attention in due for buffer in attention.buffers()]
    first_buffers = trainer.strategy.broadcast([buffer.cpu() for buffer in buffers])
    for buffer, first in zip(buffers, first_buffers, strict=True):
        buffer.copy_(first)
