"""Dropout with given random bits on a CPU, in one pass over memory."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from subquad.kernels.operands import address, loaded, may_run, run, tracing

_KERNEL = "dropout"

STEPS = 1 << 16
"""Probabilities are rounded to multiples of 1 / STEPS, and so is the scale, which keeps the mean exact."""


def new_seed() -> int:
    """Draws a seed for `random_bits` from torch's generator."""
    return 0 if tracing() else int(torch.randint(2**62, ()))


def random_bits(seed: int, count: int) -> Tensor:
    """16 random bits for each of `count` entries, as int16."""
    if tracing():
        return torch.empty(count, dtype=torch.int16, device="cpu")
    generator = np.random.SFC64(seed)
    return torch.from_numpy(generator.random_raw((count + 3) // 4).view(np.int16)[:count])


def random_bits_at(seed: int, first: int, count: int) -> Tensor:
    """16 random bits for `count` entries from number `first` on of a sequence that the seed determines, as int16."""
    if tracing():
        return torch.empty(count, dtype=torch.int16, device="cpu")
    generator, skipped = np.random.PCG64DXSM(seed), first % 4
    generator.advance(first // 4)
    drawn = generator.random_raw((skipped + count + 3) // 4).view(np.int16)
    return torch.from_numpy(drawn[skipped : skipped + count])


def threshold(p: float) -> tuple[int, float]:
    """The least value of the random bits of entries that dropout with probability p keeps, and 1 / P(keep)."""
    dropped = round(p * STEPS)
    return dropped - STEPS // 2, STEPS / (STEPS - dropped)


def takes(x: Tensor) -> bool:
    """Whether the kernel supports x and may run in this context."""
    return x.is_contiguous() and may_run(_KERNEL, x)


def drop_by(x: Tensor, bits: Tensor, least: int, scale: float) -> tuple[Tensor, Tensor]:
    """Dropout: y = x · scale where the entry of `bits` is at least `least`, 0 elsewhere.

    Args:
        bits: int16, with the shape of x.

    Returns:
        y, and the boolean mask of the entries that are kept.
    """
    y, keep = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    _run("forward", x, bits, keep, y, x.numel(), least, scale)
    return y, keep


def select(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x · scale where `keep` is True, 0 elsewhere."""
    y = torch.empty_like(x)
    _run("backward", x, keep, y, x.numel(), scale)
    return y


def _run(function: str, *arguments: Tensor | int | float) -> None:
    """Calls a function of dropout.cpp with these arguments and the number of threads."""
    run(getattr(loaded(_KERNEL), function), *map(_to_c, (*arguments, torch.get_num_threads())))


def _to_c(x: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_long | ctypes.c_float:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(address(x))
    return ctypes.c_float(x) if isinstance(x, float) else ctypes.c_long(x)
