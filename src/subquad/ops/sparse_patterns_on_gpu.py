"""The "fixed" pattern of the sparse transformer on a GPU: many chunks of queries in one call of a fused kernel."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.block_sparse import attend
from subquad.ops.mixed_precision import written_out


def fixed(
    q: Float[Tensor, "b n f"], kv: Float[Tensor, "b m 2*f"], bias: Float[Tensor, "b m"] | None, block: int,
    summary: int, heads: int, stride: int, dropout: float, width: int,
) -> Float[Tensor, "b n f"]:  # fmt: skip
    """`subquad.ops.sparse_patterns.sparse_pattern` with form "fixed", given keys and values side by side.

    A chunk is some blocks of keys and their queries. These attend to the chunk's own keys and to the summary keys of
    all blocks, of which each chunk has a copy.

    Args:
        bias: 0 at real keys, -∞ at others; None if all are real.
        block: keys of a block; each stands for `stride` tokens.
        summary: keys at the end of each block that all queries see.
        width: channels of the layer. Chunks are computed at once while their copies of keys and values, and their
            masks, have at most 3/2 as many numbers as its input.
    """
    (b, n, _), m = q.shape, kv.shape[1]
    own = block * max(1, round(math.ceil(m / block) * summary / (2 * block)))  # keys of a chunk
    chunks = math.ceil(m / own)
    if missing := chunks * own - m:
        kv = F.pad(kv, (0, 0, 0, missing))
        bias = F.pad(q.new_zeros(1, m) if bias is None else bias, (0, missing), value=-math.inf)
    if missing := chunks * own * stride - n:
        q = F.pad(q, (0, 0, 0, missing))
    keys = own + chunks * own // block * summary  # keys that a query attends to
    most = keys * max(kv.shape[2], own * stride)  # numbers of a chunk: its keys and values, its mask
    step = min(chunks, max(1, 3 * n * width // (2 * most)))  # chunks at once
    visible = pattern = _pattern(q, own, block, summary, stride, keys)
    if bias is not None:
        ends = bias.unflatten(1, (-1, block))[:, :, block - summary :].flatten(1)
        bias = torch.cat([bias.unflatten(1, (chunks, own)), ends[:, None].expand(-1, chunks, -1)], 2)[:, :, None]
    *pieces, far = _Pieces.apply(kv, step * own, block, summary)
    parts = []
    for i, (queries, piece) in enumerate(zip(q.split(step * own * stride, 1), pieces, strict=True)):
        k, v = _WithSummaries.apply(piece, far, own)
        if bias is not None:
            visible = (pattern + bias[:, i * step : (i + 1) * step]).expand(b, -1, -1, -1).flatten(0, 1)[:, None]
        y = attend(queries.unflatten(1, (-1, own * stride)).flatten(0, 1), k, v, visible, heads, dropout)
        parts.append(y.unflatten(0, (b, -1)).flatten(1, 2))
        del k, v
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1))[:, :n]


def _pattern(q: Tensor, own: int, block: int, summary: int, stride: int, keys: int) -> Float[Tensor, "1 1 c k"]:
    """What is added to the logits of a chunk: 0 at the keys that a query sees, -∞ at others.

    A query sees the keys of its own block, but for the summary keys, which follow the keys of the chunk.
    """
    shown = q.new_full((1, 1, own * stride, keys), -math.inf)
    shown[..., own:].zero_()
    cut = shown[0, 0, :, :own].unflatten(1, (-1, block)).unflatten(0, (-1, block * stride))
    cut.diagonal(dim1=0, dim2=2)[:, : block - summary].zero_()
    return shown


class _Pieces(torch.autograd.Function):
    """Keys in pieces of `size`, and a copy of the summary keys of all blocks."""

    @staticmethod
    def forward(ctx: Any, kv: Tensor, size: int, block: int, summary: int) -> tuple[Tensor, ...]:
        ctx.sizes = block, summary
        ends = kv.unflatten(1, (-1, block))[:, :, block - summary :].flatten(1, 2)
        return *kv.split(size, 1), ends

    @staticmethod
    @written_out
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        block, summary = ctx.sizes
        *d_pieces, d_ends = gradients
        d_kv = torch.cat(d_pieces, 1)
        d_kv.unflatten(1, (-1, block))[:, :, block - summary :].add_(d_ends.unflatten(1, (-1, summary)))
        return d_kv, None, None, None


class _WithSummaries(torch.autograd.Function):
    """Keys and values of the chunks of a piece as rows of a batch, followed by the summary ones."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, ends: Tensor, own: int) -> tuple[Tensor, Tensor]:
        ctx.own, ctx.rows = own, len(piece)
        chunks = piece.unflatten(1, (-1, own))
        joined = torch.cat([chunks, ends[:, None].expand(-1, chunks.shape[1], -1, -1)], 2)
        k, v = joined.flatten(0, 1).chunk(2, -1)
        return k, v

    @staticmethod
    @written_out
    def backward(ctx: Any, d_k: Tensor, d_v: Tensor) -> tuple[Tensor | None, ...]:
        (rows, _, f), b = d_k.shape, ctx.rows
        d_piece = d_k.new_empty(rows, ctx.own, 2 * f)
        torch._foreach_copy_(d_piece.chunk(2, -1), [d_k[:, : ctx.own], d_v[:, : ctx.own]])
        d_ends = d_k.new_empty(b, d_k.shape[1] - ctx.own, 2 * f)
        for gradient, out in zip((d_k, d_v), d_ends.chunk(2, -1), strict=True):
            torch.sum(gradient[:, ctx.own :].unflatten(0, (b, -1)), 1, out=out)
        return d_piece.view(b, -1, 2 * f), d_ends, None
