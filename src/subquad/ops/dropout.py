"""Dropout that draws 16 random bits for each entry.

On a CPU torch draws one number of full precision for each entry, which takes longer than the matrix product before it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subquad.kernels import dropout_kernel as kernel
from subquad.utils.derivatives import by_torch, first_order
from subquad.utils.devices import on_cpu

_WORTH = 1 << 16
"""Least number of entries for which this is faster than torch."""


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Sets entries to zero with probability p and divides the others by 1 - p; x itself outside training.

    The random state is torch's, but the dropped entries are not those of `F.dropout`.
    """
    if not training or p == 0:
        return x
    if not on_cpu(x) or torch.compiler.is_compiling() or by_torch() or not in_16_bits(p, x.numel()):
        return F.dropout(x, p)
    y: Tensor = _Dropout.apply(x, p)
    return y


def in_16_bits(p: float, entries: int) -> bool:
    """Whether dropout on a CPU draws 16 bits for each of this many entries. Otherwise torch draws them."""
    return entries >= _WORTH and 0 < round(p * kernel.STEPS) < kernel.STEPS


class _Dropout(torch.autograd.Function):
    """y = keep ⊙ x / P(keep); one byte for each entry is saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        bits = kernel.random_bits(kernel.new_seed(), x.numel())
        least, ctx.scale = kernel.threshold(p)
        if kernel.takes(x):
            y, keep = kernel.drop_by(x, bits, least, ctx.scale)
        else:
            keep = (bits >= least).view(x.shape)
            y = torch.where(keep, x, 0.0).mul_(ctx.scale)
        ctx.save_for_backward(keep)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        if kernel.takes(gradient):
            return kernel.select(gradient, keep, ctx.scale), None
        return torch.where(keep, gradient, 0.0).mul_(ctx.scale), None
