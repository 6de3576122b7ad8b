"""Dropout that draws 16 random bits for each entry.

On a CPU torch draws one number of full precision for each entry, which takes longer than the matrix product before it.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.kernels.dropout_kernel import drop_by, select, takes

_WORTH = 1 << 16
"""Least number of entries for which this is faster than torch."""

_STEPS = 1 << 16
"""Probabilities are rounded to multiples of 1 / _STEPS, and so is the scale, which keeps the mean exact."""


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Sets entries to zero with probability p and divides the others by 1 - p; x itself outside training.

    The random state is torch's, but the dropped entries are not those of `F.dropout`.
    """
    dropped = round(p * _STEPS)
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or x.numel() < _WORTH or torch.compiler.is_compiling() or not 0 < dropped < _STEPS:
        return F.dropout(x, p)
    y: Tensor = _Dropout.apply(x, dropped)
    return y


class _Dropout(torch.autograd.Function):
    """y = keep ⊙ x / P(keep); one byte for each entry is saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        generator = np.random.SFC64(int(torch.randint(2**62, ())))
        bits = torch.from_numpy(generator.random_raw((x.numel() + 3) // 4).view(np.int16)[: x.numel()])
        least, ctx.scale = dropped - _STEPS // 2, _STEPS / (_STEPS - dropped)
        if takes(x):
            y, keep = drop_by(x, bits, least, ctx.scale)
        else:
            keep = (bits >= least).view(x.shape)
            y = torch.where(keep, x, 0.0).mul_(ctx.scale)
        ctx.save_for_backward(keep)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        if takes(gradient):
            return select(gradient, keep, ctx.scale), None
        return torch.where(keep, gradient, 0.0).mul_(ctx.scale), None
