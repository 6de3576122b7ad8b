"""Renews the fitted or redrawn state of attention mechanisms between training steps."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from subquad.attention.base import Refreshable
from subquad.data.microbatches import Microbatch


class RefreshAttention(pl.Callback):
    """Before each training batch asks every `Refreshable` whether it is due, and gives those that are what they read.

    Epochs are passes over the training rows here, whatever the interval between validations is.

    One pass of the batch through the model without gradients renews the due mechanisms from the first to the last, so
    that the second is fitted to what the renewed first one makes of the batch. The pass leaves no trace but theirs: no
    dropout, running statistics of BatchNorm and random generators as before. It runs eagerly where the model is
    compiled. The batch is that of the optimiser step: where processes share it or it is accumulated in parts, every
    process reads all of it, and they end with the buffers of the first.

    All state is in the mechanisms' buffers; a resumed run repeats the undisturbed one.
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
        place, trained_on = (trainer.current_epoch, batch_idx), trainer.datamodule  # type: ignore[attr-defined]
        if trained_on is not None:
            place = trained_on.data.place(*place)
        due = [mechanism for mechanism in self.mechanisms if mechanism.due(*place, trainer.global_step)]
        if not due:
            return
        if isinstance(batch, Microbatch):
            batch = trained_on.data.whole_batch(batch.whole).to(pl_module.device)
        _renew(due, pl_module, batch, trainer.global_step)
        if trainer.world_size > 1:
            _share(due, trainer)


def _renew(due: Sequence[Any], model: nn.Module, batch: Any, step: int) -> None:
    waiting = list(due)

    def refresh(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if attention in waiting:  # weights tied over layers are one mechanism, renewed where it comes first
            waiting.remove(attention)
            given = dict(zip(("x", "context", "masks"), args, strict=False)) | kwargs
            attention.refresh(given["x"], given["context"], given["masks"])

    with ExitStack() as stack:
        for attention in due:
            stack.callback(attention.register_forward_pre_hook(refresh, with_kwargs=True).remove)
        stack.enter_context(_untouched(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        # Where nothing else draws, the generators stand still: each renewal needs draws of its own.
        torch.manual_seed((torch.initial_seed() + step + 1) % 2**63)
        model(batch)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Dropout is off, BatchNorm normalises by the batch as in training, and all is afterwards as it was."""
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


def _share(due: Sequence[Any], trainer: pl.Trainer) -> None:
    """Gives the buffers of the first process to all; through its memory, as each has its own device."""
    buffers = [buffer for attention in due for buffer in attention.buffers()]
    theirs = trainer.strategy.broadcast([buffer.cpu() for buffer in buffers])
    for mine, first in zip(buffers, theirs, strict=True):
        mine.copy_(first)
