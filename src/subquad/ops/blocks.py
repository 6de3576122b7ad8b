"""Blocks of neighbouring tokens and the windows of context around them."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from subquad.ops.pooling import windows
from subquad.specs import Context, ContextMask, Tokens
from subquad.utils.derivatives import by_torch, one_at_a_time


def blocks(x: Shaped[Tensor, "b n d"], size: int) -> Shaped[Tensor, "bk w d"]:
    """Cuts n tokens into k = ⌈n / size⌉ blocks, the last one filled with zeros; blocks become rows of the batch."""
    return windows(x, size).flatten(0, 1)


def unblocks(x: Float[Tensor, "bk w d"], batch: int, length: int) -> Tokens:
    """Joins blocks to sequences and removes the filling."""
    return x.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length]


def around(x: Context, size: int, before: int, after: int) -> Float[Tensor, "bk w d"]:
    """Each block of `size` tokens with the `before` tokens before it and the `after` tokens after it; zeros outside.

    Windows overlap. If the batch is one row, they are views of the padded tokens.
    """
    padded = F.pad(x, (0, 0, before, after + -x.shape[1] % size))
    width = before + size + after
    cut = padded.unfold(1, width, size).mT if by_torch() else _Windows.apply(padded, width, size)
    return cut.flatten(0, 1)


class _Windows(torch.autograd.Function):
    """Overlapping windows [b, k, w, d] as a view. Backward adds slices; that of `unfold` adds single elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, step: int) -> Tensor:
        ctx.step = step
        return x.unfold(1, width, step).mT

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        batch, count, width, dim = grad.shape
        pieces = grad.split(ctx.step, 2)
        total = grad.new_zeros(batch, count + len(pieces) - 1, ctx.step, dim)
        for number, piece in enumerate(pieces):
            total[:, number : number + count, : piece.shape[2]] += piece
        return total.flatten(1, 2)[:, : width + (count - 1) * ctx.step], None, None


def visible_in_windows(band: Bool[Tensor, "q w"], real: Bool[Tensor, "ck w"]) -> Bool[Tensor, "ck q w"]:
    """Which positions of its window each query sees: those of the band that are real.

    The queries are the contiguous axis, as the kernel `short_attention` requires.
    """
    return (band.mT.contiguous() & real[..., None]).mT


def around_mask(
    mask: ContextMask, length: int, size: int, before: int, after: int, device: torch.device
) -> Bool[Tensor, "ck w"]:
    """Which positions of `around` hold a real token; the batch axis is 1 if there is no padding."""
    real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
    padded = F.pad(real, (before, after + -length % size))
    return padded.unfold(1, before + size + after, size).flatten(0, 1)
