"""Softmax attention with dropout on a CPU, a part of the weights at a time, so that memory is linear in n and m.

    S = scale · Q Kᵀ + B     L = log Σ_j exp S_j     P = exp(S - L)     Y = (M ⊙ P) V

B is a mask of numbers, 0 or -∞ for a mask of booleans. M is 0 at dropped weights and 1 / P(keep) elsewhere. Of all
this, only L is kept, one number for each query. The backward pass computes S and P again, draws M again from its seed,
and adds up over parts of the queries

    dP = M ⊙ dY Vᵀ     dS = P ⊙ (dP - Σ_j P_j dP_j)     dV = (M ⊙ P)ᵀ dY     dQ = scale · dS K     dK = scale · dSᵀ Q

Source: Rabe & Staats 2021, https://arxiv.org/abs/2112.05682 (parts of the queries), and Dao et al. 2022,
https://arxiv.org/abs/2205.14135, Appendix B (L, and dropout drawn again). Unlike there, keys are not divided, so that
each query has all of its logits in one part.

M is a function of the seed and the number of the weight in [b, h, n, m], so it depends neither on the size of the parts
nor on the number of threads.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from subquad.kernels.dropout_kernel import new_seed, random_bits_at, threshold
from subquad.kernels.operands import VECTOR, eager, tracing
from subquad.kernels.short_attention_kernel import MOST_KEYS, compiled, compiled_backward, supports
from subquad.ops.dropout import in_16_bits
from subquad.ops.mixed_precision import product_type, without_autocast, written_out

MANY = 1 << 27
"""Weights of a call above which they are computed in parts: 512 MiB in float32. With more than MOST_KEYS keys, for
which no kernel computes all of them in one pass, they always are."""

WEIGHTS = 1 << 20
"""Weights of a part, if it has more than `QUERIES` queries: 4 MiB in float32, of which a part holds three copies."""

QUERIES = 64
"""Parts of a head have a multiple of so many queries, the tile of the kernel."""

Part = tuple[slice, slice, slice]
"""Rows of the batch, heads and queries."""


def divides(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], mask: Tensor | None, dropout_p: float) -> bool:
    """Whether attention to these operands, of four axes each, is computed in parts. Keys and values may be several."""
    operands = q, *keys, *values
    if dropout_p == 0 or not eager(*operands) or any(x.dim() != 4 for x in operands):
        return False
    many = sum(x.shape[2] for x in keys)
    weights = math.prod(q.shape[:3]) * many
    return (
        (many > MOST_KEYS or weights > MANY)
        and in_16_bits(dropout_p, weights)
        and (mask is None or mask.dtype == torch.bool or (mask.is_floating_point() and not mask.requires_grad))
    )


def attention_in_parts(
    q: Float[Tensor, "b h n e"], k: Float[Tensor, "#b #h m e"], v: Float[Tensor, "#b #h m c"],
    mask: Shaped[Tensor, "..."] | None, dropout_p: float, scale: float,
) -> Float[Tensor, "b h n c"]:  # fmt: skip
    """dropout(softmax(scale · Q Kᵀ)) V for operands that `divides` accepts; 0 for a query without visible keys.

    Parts are computed in float32, in double precision in float64, also where operands and results are in half
    precision. The kernel of `subquad.kernels.short_attention_kernel` computes those that it supports.

    Args:
        mask: broadcasts to [b, h, n, m]. Boolean, True at the keys that a query sees; or numbers that are added to the
            logits.
    """
    k, v = (x.expand(*q.shape[:2], -1, -1) for x in (k, v))
    if mask is not None:
        mask = mask.view((1,) * (4 - mask.dim()) + mask.shape)
    y: Tensor = _InParts.apply(q, k, v, mask, dropout_p, scale, new_seed())
    return y


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, scale: float, seed: int
    ) -> Tensor:
        dtype = product_type(q)
        with without_autocast(q):
            wide = _operands(q, k, v, mask)
            padded = _padded(*wide)
            ctx.compiled = supports(padded[0], padded[1:2], padded[2:], mask)
            ctx.numbers, ctx.seed = (scale, dropout_p), seed
            wide, attend = (padded, _attend_compiled) if ctx.compiled else (wide, _attend)
            y = wide[2].new_empty(q.shape[0], q.shape[2], q.shape[1], wide[2].shape[3]).transpose(1, 2)
            lse = y.new_empty(q.shape[:3])
            for part, bits in _parts(q, k, seed):
                y[part], lse[part] = attend(*_of_part(part, wide, mask), bits, *ctx.numbers)
            ctx.save_for_backward(q, k, v, mask, lse)
            return y[..., : v.shape[3]].to(dtype)

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, lse = ctx.saved_tensors
        slopes = _slopes_compiled if ctx.compiled else _slopes
        wide, dy = _operands(q, k, v, mask), dy.to(lse.dtype)
        if ctx.compiled:
            wide, (dy,) = _padded(*wide), _padded(dy)
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in wide)
        for part, bits in _parts(q, k, ctx.seed):
            operands = *_of_part(part, wide, mask), bits, *ctx.numbers
            dq[part], d_keys, d_values = slopes(dy[part], lse[part], *operands)
            dk[part[:2]] += d_keys
            dv[part[:2]] += d_values
        gradients = (dx[..., : x.shape[3]].to(x.dtype) for dx, x in zip((dq, dk, dv), (q, k, v), strict=True))
        return *gradients, None, None, None, None


def _parts(q: Tensor, k: Tensor, seed: int) -> Iterator[tuple[Part, Tensor]]:
    """Parts whose weights are neighbours in [b, h, n, m], with random bits for each of these weights.

    A trace of the memory sees one part, as no other takes more.
    """
    (b, h, n), m = q.shape[:3], k.shape[2]
    each = WEIGHTS // m
    queries = n if n <= each else max(QUERIES, each // QUERIES * QUERIES)
    heads, rows = min(h, max(1, each // n)), max(1, each // (n * h))
    for row in range(0, b, rows):
        for head in range(0, h, heads):
            for query in range(0, n, queries):
                ends = min(row + rows, b), min(head + heads, h), min(query + queries, n)
                count = (ends[0] - row) * (ends[1] - head) * (ends[2] - query) * m
                part = slice(row, ends[0]), slice(head, ends[1]), slice(query, ends[2])
                yield part, random_bits_at(seed, ((row * h + head) * n + query) * m, count)
                if tracing():
                    return


def _operands(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """The operands in float32 at least. Values of padding, which may be infinite or NaN, are 0."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if mask is not None and mask.dtype == torch.bool and mask.shape[2] == 1:
        v = v.masked_fill(~mask.mT, 0)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _padded(*operands: Tensor) -> tuple[Tensor, ...]:
    """The operands with zeros up to the widths that the kernel takes, which change no product."""
    missing = [-x.shape[3] % VECTOR for x in operands]
    return tuple(F.pad(x, (0, count)) if count else x for x, count in zip(operands, missing, strict=True))


def _of_part(
    part: Part, operands: Sequence[Tensor], mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    q, k, v = operands
    if mask is not None:  # axes of length 1 are those of all rows, heads or queries
        mask = mask[tuple(slice(None) if size == 1 else s for s, size in zip(part, mask.shape, strict=False))]
    return q[part], k[part[:2]], v[part[:2]], mask


def _logits(q: Tensor, k: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    logits = (q * scale) @ k.mT
    if mask is None:
        return logits
    return torch.where(mask, logits, -math.inf) if mask.dtype == torch.bool else logits.add_(mask)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bits: Tensor, scale: float, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Y and L of a part. Without visible keys, L is the lowest number, not -∞, so that P is 0."""
    least, share = threshold(dropout_p)
    weights = _logits(q, k, mask, scale)
    top = weights.amax(-1, keepdim=True).clamp_(min=torch.finfo(weights.dtype).min)
    weights.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True).clamp_(min=1)  # a visible key has the weight 1
    weights.mul_((bits >= least).view(weights.shape))
    return (weights @ v).mul_(share / total), top.add_(total.log_())[..., 0]


def _slopes(
    dy: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bits: Tensor, scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dQ, dK and dV of a part."""
    least, share = threshold(dropout_p)
    weights = _logits(q, k, mask, scale).sub_(lse[..., None]).exp_()
    kept = (bits >= least).view(weights.shape)
    dy = dy * share
    slopes = (dy @ v.mT).mul_(kept).mul_(weights)
    slopes.addcmul_(weights, slopes.sum(-1, keepdim=True), value=-1).mul_(scale)
    return slopes @ k, slopes.mT @ q, weights.mul_(kept).mT @ dy


def _attend_compiled(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bits: Tensor, scale: float, dropout_p: float
) -> tuple[Tensor, Tensor]:
    y, lse = compiled(q, [k], [v], mask, scale, dropout_p, bits)
    return y, lse


def _slopes_compiled(
    dy: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bits: Tensor, scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    operands = q, [k], [v], mask, lse.contiguous(), scale, dropout_p, bits
    dq, dk, dv = compiled_backward(dy, *operands)
    return dq, dk, dv
