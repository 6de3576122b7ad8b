"""Learning-rate schedules, one factor for each optimiser step; configs/scheduler/ finishes them.

The factor is that of every group of parameters: each has it times its own rate.
"""

import math
from collections.abc import Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from subquad.utils.errors import UserError


def constant(optimizer: Optimizer, total_steps: int) -> LRScheduler:
    """The learning rate of the optimiser throughout."""
    return LambdaLR(optimizer, lambda step: 1.0)


def inverse_sqrt(optimizer: Optimizer, total_steps: int, warmup: int, start_lr: float = 1e-7) -> LRScheduler:
    """Linear from `start_lr` to the learning rate in `warmup` steps, then times √(warmup / step) (fairseq)."""
    peak = optimizer.defaults["lr"]

    def factor(step: int) -> float:
        if step < warmup:
            return (start_lr + (peak - start_lr) * step / warmup) / peak
        return math.sqrt(warmup / max(step, 1))

    return LambdaLR(optimizer, factor)


def warmup_cosine(optimizer: Optimizer, total_steps: int, warmup: int) -> LRScheduler:
    """Linear warm-up, then half a cosine to 0 at `total_steps`."""

    def factor(step: int) -> float:
        if step < warmup:
            return step / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total_steps - warmup))))

    return LambdaLR(optimizer, factor)


def epoch_cosine(
    optimizer: Optimizer, total_steps: int, epochs: int, warmup_epochs: int, start_lr: float, final_lr: float
) -> LRScheduler:
    """The cosine of timm as DeiT and PVT call it: the rate changes between epochs, and warm-up is part of the cosine.

    In epoch e from 0: linear from `start_lr` while e < `warmup_epochs`, then half a cosine that would begin in epoch 0
    and end at `final_lr` after `epochs` of them.
    """
    peak = optimizer.defaults["lr"]

    def factor(step: int) -> float:
        epoch = min(step * epochs // total_steps, epochs)
        if epoch < warmup_epochs:
            return (start_lr + (peak - start_lr) * epoch / warmup_epochs) / peak
        return (final_lr + (peak - final_lr) * 0.5 * (1 + math.cos(math.pi * epoch / epochs))) / peak

    return LambdaLR(optimizer, factor)


def one_cycle(optimizer: Optimizer, total_steps: int, warmup: int) -> LRScheduler:
    """torch's OneCycleLR with linear annealing, as the Nyströmformer code: from lr/25 up, then down to lr/250,000.

    A warm-up longer than training takes all steps but the last; torch divides by zero without that one.
    """
    rising = min(warmup, total_steps - 1) / total_steps
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, peaks, total_steps=total_steps, pct_start=rising, anneal_strategy="linear")


def warmup_linear(
    optimizer: Optimizer, total_steps: int, warmup: int, gamma: float = 1.0, every: int | None = None
) -> LRScheduler:
    """Linear warm-up, then linearly to 0 at `total_steps`; and times `gamma` each `every` steps, where that is set."""

    def factor(step: int) -> float:
        decay = 1.0 if every is None else gamma ** (step // every)
        if step < warmup:
            return decay * step / warmup
        return decay * max(0.0, (total_steps - step) / max(1, total_steps - warmup))

    return LambdaLR(optimizer, factor)


def staircase(
    optimizer: Optimizer, total_steps: int, epochs: int, warmup: int, drops: Sequence[int], gamma: float
) -> LRScheduler:
    """Constant within each of `epochs` epochs: the first `warmup` climb to it in equal stairs, `drops` each cut it.

    Epoch e, from 0, has min(1, (e + 1) / (warmup + 1)) of the rate, times `gamma` for each drop that is at most e.
    """
    if epochs < 1:
        raise UserError(f"A schedule by epochs needs their number; scheduler.epochs is {epochs}, see limits.epochs.")

    def factor(step: int) -> float:
        epoch = step * epochs // total_steps
        return min(1.0, (epoch + 1) / (warmup + 1)) * gamma ** sum(drop <= epoch for drop in drops)

    return LambdaLR(optimizer, factor)
