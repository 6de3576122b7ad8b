"""Linformer on a GPU in few operators, with the derivative of its projections written out.

Compressed tokens have the axes [slot, row of the batch, channel], in which all slots are rows of one product with the
weights of keys and values, and heads are a part of the batch without a copy.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.heads import split_heads
from subquad.ops.mixed_precision import cast_at_once, copy_and_cast, written_out
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, ContextMask, Tokens
from subquad.utils.fixed_weights import once


def linformer(
    x: Tokens, context: Context, mask: ContextMask, weights: Sequence[Tensor],
    maps: Sequence[Float[Tensor, "s longest"]], heads: int, dropout_p: float,
) -> Tokens:  # fmt: skip
    """The output of `subquad.attention.linformer.Linformer` with learned maps of equal size.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, W_O and b_O.
        maps: E and F; or E of each head, then F of each head; or one map that is both.
    """
    inputs, length = ((x,) if context is x else (x, context)), context.shape[1]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *weights, *maps)):
        own = [m[:, :length] for m in maps]
        with cast_at_once(*inputs, *weights, *own) as cast:
            *_, w_o, b_o = parameters = cast[len(inputs) : len(inputs) + 8]
            arguments = *cast[: len(inputs)], *parameters[:6], *cast[len(inputs) + 8 :]
            q, k, v = _Projected.apply(heads, len(inputs), mask, *arguments)
            y = softmax_attention(q, k, v, dropout_p=dropout_p)
            return F.linear(y.transpose(1, 2).flatten(-2), w_o, b_o)
    with cast_at_once(*inputs) as tokens:
        dtype = tokens[0].dtype
        rows, w_kv, b_kv, w_q, b_q, w_o, b_o = once(
            (weights[0], "packed", dtype), lambda: _packed(dtype, weights, maps), *weights, *maps
        )
        keys, values = _compressed(tokens[-1], mask, rows[..., :length], w_kv, b_kv, heads)[0]
        y = softmax_attention(split_heads(F.linear(tokens[0], w_q, b_q), heads), keys, values, dropout_p=dropout_p)
        return F.linear(y.transpose(1, 2).flatten(-2), w_o, b_o)


def _packed(dtype: torch.dtype, weights: Sequence[Tensor], maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All maps; the weights and biases of keys and values, of each head if it has its own maps; and the other weights.

    One operator copies and casts them.
    """
    w_q, b_q, w_k, b_k, w_v, b_v, *out = weights
    d = len(w_q)
    of_maps, w_kv, b_kv = (w_q.new_empty(s, dtype=dtype) for s in ((len(maps), *maps[0].shape), (2, d, d), (2, d)))
    others = copy_and_cast([*of_maps, *w_kv, *b_kv], [*maps, w_k, w_v, b_k, b_v], [w_q, b_q, *out], dtype)
    groups = max(2, len(maps))
    return of_maps, w_kv.view(groups, -1, d), b_kv.view(groups, -1), *others


def _compressed(
    context: Context, mask: ContextMask, maps: Float[Tensor, "r s m"],
    w_kv: Float[Tensor, "g c d"], b_kv: Float[Tensor, "g c"], heads: int,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:  # fmt: skip
    """Keys and values `[2, b, h, s, e]`, and the other tensors that the backward pass needs."""
    (b, _, d), (count, slots, _), groups = context.shape, maps.shape, len(w_kv)
    hidden = real = None
    rows = maps.flatten(0, 1)
    if mask is None:
        total = maps.sum(-1)[..., None]  # E 1, the weight of the bias in each slot
    else:
        hidden, real = ~mask[..., None], mask.to(context.dtype)
        context, total = context.masked_fill(hidden, 0), (rows @ real.mT).view(count, slots, b)
    a = context.new_empty(count * slots, b, d)
    torch.bmm(rows.expand(b, -1, -1), context, out=a.transpose(0, 1))
    a = a.view(count, slots * b, d)
    kv = torch.bmm(a.expand(groups, -1, -1), w_kv.mT).view(groups, slots, b, -1)
    kv.addcmul_(total[..., None], b_kv[:, None, None])
    return _by_head(kv, heads), (hidden, real, context, total, a)


def _by_head(kv: Float[Tensor, "g s b c"], heads: int) -> Float[Tensor, "2 b h s e"]:
    """A view."""
    groups = len(kv) // 2
    split = kv.unflatten(-1, (heads // groups, -1)).unflatten(0, (2, groups))
    return split.permute(0, 3, 1, 4, 2, 5).flatten(2, 3)


class _Projected(torch.autograd.Function):
    """Queries, keys and values in heads, of operands in one type."""

    @staticmethod
    def forward(ctx: Any, heads: int, inputs: int, mask: Tensor | None, *given: Tensor) -> tuple[Tensor, ...]:
        x, context = given[0], given[inputs - 1]
        w_q, b_q, w_k, b_k, w_v, b_v, *maps = given[inputs:]
        rows, w_kv, b_kv, *_ = _packed(x.dtype, [w_q, b_q, w_k, b_k, w_v, b_v], maps)
        (keys, values), kept = _compressed(context, mask, rows, w_kv, b_kv, heads)
        ctx.inputs = inputs
        ctx.save_for_backward(x, w_q, w_kv, b_kv, rows, *kept)
        return split_heads(F.linear(x, w_q, b_q), heads), keys, values

    @staticmethod
    @written_out
    def backward(ctx: Any, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> tuple[Tensor | None, ...]:
        x, w_q, w_kv, b_kv, maps, hidden, real, context, total, a = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        (count, slots, length), (b, _, d), (groups, c, _) = maps.shape, context.shape, w_kv.shape
        of_head = [t.unflatten(1, (groups // 2, -1)).permute(1, 3, 0, 2, 4) for t in (d_k, d_v)]
        d_kv = torch.stack(of_head).view(groups, slots * b, c)
        d_w = torch.bmm(d_kv.mT, a.expand(groups, -1, -1))
        d_a = torch.bmm(d_kv, w_kv)
        if real is None:
            d_kv = d_kv.view(groups, slots, b, c).sum(2)
        d_b = torch.bmm(total.view(count, 1, -1).expand(groups, -1, -1), d_kv)
        d_total = torch.bmm(d_kv, b_kv[..., None])
        if count == 1:
            d_a, d_total = d_a.sum(0), d_total.sum(0)
        d_a, d_total = d_a.view(count * slots, b, d), d_total.view(count * slots, -1)
        d_maps = d_a.view(-1, b * d) @ context.mT.reshape(b * d, length)
        d_maps = d_maps.add_(d_total) if real is None else d_maps.addmm_(d_total, real)
        of_queries = d_q.transpose(1, 2).reshape(-1, d)
        of_inputs = [torch.bmm(maps.view(-1, length).mT.expand(b, -1, -1), d_a.transpose(0, 1))]
        if hidden is not None:
            of_inputs[0].masked_fill_(hidden, 0)
        if ctx.inputs == 1:
            of_inputs[0].view(-1, d).addmm_(of_queries, w_q)
        else:
            of_inputs.insert(0, (of_queries @ w_q).view_as(x))
        (d_wk, d_wv), (d_bk, d_bv) = d_w.view(2, d, d), d_b.view(2, d)
        of_weights = of_queries.mT @ x.reshape(-1, d), of_queries.sum(0), d_wk, d_bk, d_wv, d_bv
        return None, None, None, *of_inputs, *of_weights, *d_maps.view(count, slots, length)
