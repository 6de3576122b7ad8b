"""Blocks of neighbouring tokens, and the windows of context around each: exact local attention without n x n."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def blocks(x: Float[Tensor, "b n d"], size: int) -> Float[Tensor, "bk w d"]:
    """Cuts n tokens into k = ceil(n / size) blocks, the last one filled with zeros; blocks join the batch."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size)).flatten(0, 1)


def unblocks(x: Float[Tensor, "bk w d"], batch: int, length: int) -> Float[Tensor, "b n d"]:
    """Puts blocks back in a row and cuts the filling off."""
    return x.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length]


def around(x: Float[Tensor, "b m d"], size: int, before: int, after: int) -> Float[Tensor, "bk w d"]:
    """The tokens of each block of `size` with `before` tokens ahead of it and `after` behind it; zeros outside.

    A window is a view of the padded tokens as long as the batch is one row: nothing is copied.
    """
    padded = F.pad(x, (0, 0, before, after + -x.shape[1] % size))
    return _Windows.apply(padded, before + size + after, size).flatten(0, 1)


class _Windows(torch.autograd.Function):
    """Overlapping windows [b, k, w, d] as a view; gradients are added in slices, where `unfold` adds one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, step: int) -> Tensor:
        ctx.shape, ctx.width, ctx.step = x.shape, width, step
        return x.unfold(1, width, step).mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = grad.new_zeros(ctx.shape)
        for start in range(0, ctx.width, ctx.step):
            piece = grad[:, :, start : start + ctx.step]
            total[:, start:].unfold(1, piece.shape[2], ctx.step)[:, : grad.shape[1]].mT.add_(piece)
        return total, None, None


def around_mask(
    mask: Bool[Tensor, "b m"] | None, length: int, size: int, before: int, after: int, device: torch.device
) -> Bool[Tensor, "ck w"]:
    """Which places of `around` hold a real token; batch axis 1 when there is no padding."""
    real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
    padded = F.pad(real, (before, after + -length % size))
    return padded.unfold(1, before + size + after, size).flatten(0, 1)
