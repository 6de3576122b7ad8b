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


def around_with(
    first: Float[Tensor, "b f d"], x: Float[Tensor, "b m d"], size: int, before: int, after: int
) -> Float[Tensor, "bk v d"]:
    """The rows `first`, then `around`, of each block, written once; `before` and `after` are at most `size`."""
    return _FirstAndWindows.apply(first, x, size, before, after).flatten(0, 1)


class _FirstAndWindows(torch.autograd.Function):
    """[b, k, first + before + size + after, d]."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, x: Tensor, size: int, before: int, after: int) -> Tensor:
        batch, length, dim = x.shape
        ctx.parts, ctx.length = (first.shape[1], before, size, after), length
        rows = x.new_empty(batch, -(-length // size), sum(ctx.parts), dim)
        shared, ahead, own, behind = rows.split(ctx.parts, 2)
        shared.copy_(first[:, None])
        whole = length // size
        own[:, :whole] = x[:, : whole * size].unflatten(1, (whole, size))
        if whole < rows.shape[1]:
            own[:, whole, : length % size] = x[:, whole * size :]
            own[:, whole, length % size :] = 0
        ahead[:, 0], behind[:, -1] = 0, 0
        ahead[:, 1:] = own[:, :-1, size - before :]
        behind[:, :-1] = own[:, 1:, :after]
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        shared, ahead, own, behind = grad.split(ctx.parts, 2)
        _, before, size, after = ctx.parts
        total = own.clone(memory_format=torch.contiguous_format)
        total[:, :-1, size - before :] += ahead[:, 1:]
        total[:, 1:, :after] += behind[:, :-1]
        return shared.sum(1), total.flatten(1, 2)[:, : ctx.length], None, None, None


def around_mask(
    mask: Bool[Tensor, "b m"] | None, length: int, size: int, before: int, after: int, device: torch.device
) -> Bool[Tensor, "ck w"]:
    """Which places of `around` hold a real token; batch axis 1 when there is no padding."""
    real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
    padded = F.pad(real, (before, after + -length % size))
    return padded.unfold(1, before + size + after, size).flatten(0, 1)
