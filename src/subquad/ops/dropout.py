"""Dropout whose random numbers do not cost more than the layer that they are for.

On a CPU torch draws one number of full precision for each entry, which takes longer than the product of matrices before
it. Sixteen random bits decide just as well.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from subquad.kernels.dropout import drop_by, select, takes

_WORTH = 1 << 16
"""Entries below which starting a generator costs more than it saves."""

_STEPS = 1 << 16
"""What a probability is rounded to a multiple of; the scale is that of the rounded one, so means are kept exactly."""


def drop(x: Tensor, p: float, training: bool) -> Tensor:
    """Sets entries to zero with probability p and divides the others by 1 - p; x itself outside training.

    Decided by torch's random state: the same seed gives the same entries, though others than `F.dropout` would choose.
    """
    dropped = round(p * _STEPS)
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or x.numel() < _WORTH or torch.compiler.is_compiling() or not 0 < dropped < _STEPS:
        return F.dropout(x, p)
    y: Tensor = _Dropout.apply(x, dropped)
    return y


class _Dropout(torch.autograd.Function):
    """y = keep ⊙ x / P(keep); of the forward pass one byte an entry is kept."""

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
