"""Learning-rate schedules, updated at every optimiser step; configs/scheduler/ sets their arguments.

The same factor multiplies the learning rate of every parameter group.
"""

import logging
import math
from collections.abc import Sequence
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Natural, NonNegative, Positive

log = logging.getLogger(__name__)


def constant(optimizer: Optimizer, total_steps: int) -> LRScheduler:
    """Constant learning rate."""
    return LambdaLR(optimizer, lambda step: 1.0)


def inverse_sqrt(optimizer: Optimizer, total_steps: int, warmup: Natural, start_lr: NonNegative = 1e-7) -> LRScheduler:
    """Linear from `start_lr` to the learning rate in `warmup` steps, then times √(warmup / step) (fairseq).

    Without a warm-up it is times 1 / √step; fairseq's rate is then 0.
    """
    peak = optimizer.defaults["lr"]
    _warn_if_longer(warmup, total_steps)

    def factor(step: int) -> float:
        if step < warmup:
            return (start_lr + (peak - start_lr) * step / warmup) / peak
        return math.sqrt(max(warmup, 1) / max(step, 1))

    return LambdaLR(optimizer, factor)


def warmup_cosine(optimizer: Optimizer, total_steps: int, warmup: Natural) -> LRScheduler:
    """Linear warm-up, then half a cosine to 0 at `total_steps`."""
    _warn_if_longer(warmup, total_steps)

    def factor(step: int) -> float:
        if step < warmup:
            return step / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total_steps - warmup))))

    return LambdaLR(optimizer, factor)


def epoch_cosine(
    optimizer: Optimizer, total_steps: int, epochs: Count | Literal[-1], warmup_epochs: Natural, start_lr: NonNegative,
    final_lr: NonNegative,
) -> LRScheduler:  # fmt: skip
    """timm's cosine schedule with the settings of DeiT and PVT: the rate changes between epochs only.

    In epoch e = 0, 1, ...: linear from `start_lr` while e < `warmup_epochs`, then half a cosine from epoch 0, whose
    first `warmup_epochs` are replaced by the warm-up, to `final_lr` after `epochs`.
    """
    _need_epochs(epochs)
    peak = optimizer.defaults["lr"]

    def factor(step: int) -> float:
        epoch = min(step * epochs // total_steps, epochs)
        if epoch < warmup_epochs:
            return (start_lr + (peak - start_lr) * epoch / warmup_epochs) / peak
        return (final_lr + (peak - final_lr) * 0.5 * (1 + math.cos(math.pi * epoch / epochs))) / peak

    return LambdaLR(optimizer, factor)


def one_cycle(optimizer: Optimizer, total_steps: int, warmup: Natural) -> LRScheduler:
    """torch's OneCycleLR with linear annealing, as in the Nyströmformer code: from lr/25 up, then down to lr/250,000.

    A warm-up longer than training is cut to all steps but the last, and one of a single step is left out: in both cases
    torch would divide by zero.
    """
    _warn_if_longer(warmup, total_steps)
    rising = min(warmup, total_steps - 1)
    part = 0.0 if rising == 1 else rising / total_steps
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, peaks, total_steps=total_steps, pct_start=part, anneal_strategy="linear")


def warmup_linear(
    optimizer: Optimizer, total_steps: int, warmup: Natural, gamma: Positive = 1.0, every: Count | None = None
) -> LRScheduler:
    """Linear warm-up, then linear decay to 0 at `total_steps`; times `gamma` every `every` steps, if that is set."""
    _warn_if_longer(warmup, total_steps)

    def factor(step: int) -> float:
        decay = 1.0 if every is None else gamma ** (step // every)
        if step < warmup:
            return decay * step / warmup
        return decay * max(0.0, (total_steps - step) / max(1, total_steps - warmup))

    return LambdaLR(optimizer, factor)


def staircase(
    optimizer: Optimizer, total_steps: int, epochs: Count | Literal[-1], warmup: Natural, drops: Sequence[Natural],
    gamma: Positive,
) -> LRScheduler:  # fmt: skip
    """Constant within each epoch: a stepwise warm-up over `warmup` epochs, then a cut by `gamma` at each of `drops`.

    The factor of epoch e = 0, 1, ... is min(1, (e + 1) / (warmup + 1)), times `gamma` for each drop that is at most e.
    """
    _need_epochs(epochs)

    def factor(step: int) -> float:
        epoch = step * epochs // total_steps
        return min(1.0, (epoch + 1) / (warmup + 1)) * gamma ** sum(drop <= epoch for drop in drops)

    return LambdaLR(optimizer, factor)


def _warn_if_longer(warmup: int, total_steps: int) -> None:
    if warmup > total_steps:
        log.warning(
            "The warm-up of scheduler.warmup=%s steps is longer than the run of %s, and ends at %.2g of the rate.",
            warmup, total_steps, total_steps / warmup,
        )  # fmt: skip


def _need_epochs(epochs: int) -> None:
    if epochs < 1:
        raise UserError(
            f"A schedule by epochs needs the number of epochs; scheduler.epochs is {epochs}, see limits.epochs."
        )
