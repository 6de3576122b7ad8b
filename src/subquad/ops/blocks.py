"""Blocks of neighbouring tokens, and the windows of context around each: exact local attention without n x n."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from subquad.ops.pooling import windows


def blocks(x: Shaped[Tensor, "b n d"], size: int) -> Shaped[Tensor, "bk w d"]:
    """Cuts n tokens into k = ceil(n / size) blocks, the last one filled with zeros; blocks join the batch."""
    return windows(x, size).flatten(0, 1)


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
        ctx.step = step
        return x.unfold(1, width, step).mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        batch, count, width, dim = grad.shape
        pieces = grad.split(ctx.step, 2)
        total = grad.new_zeros(batch, count + len(pieces) - 1, ctx.step, dim)
        for number, piece in enumerate(pieces):
            total[:, number : number + count, : piece.shape[2]] += piece
        return total.flatten(1, 2)[:, : width + (count - 1) * ctx.step], None, None


def seen_of_windows(band: Bool[Tensor, "q w"], real: Bool[Tensor, "ck w"]) -> Bool[Tensor, "ck q w"]:
    """Which places of its window each query sees: those of the band that are real.

    Queries lie side by side in memory, as our kernel for few keys reads masks.
    """
    return (band.mT.contiguous() & real[..., None]).mT


def around_mask(
    mask: Bool[Tensor, "b m"] | None, length: int, size: int, before: int, after: int, device: torch.device
) -> Bool[Tensor, "ck w"]:
    """Which places of `around` hold a real token; batch axis 1 when there is no padding."""
    real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
    padded = F.pad(real, (before, after + -length % size))
    return padded.unfold(1, before + size + after, size).flatten(0, 1)
