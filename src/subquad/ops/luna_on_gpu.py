"""Luna on a GPU in few operators, with its derivative written out.

Latent rows have the axes [latent, row of the batch, channel], in which the heads of all rows are `[h, l·b, e]` without
a copy: each map of heads is one product. Latents that are the same for all rows of the batch have a batch axis of 1.
One operator copies all weights to the buffers of their products and casts them under autocast, which is off inside.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.mixed_precision import cast, copy_and_cast, product_type, written_out
from subquad.specs import Context, ContextMask, Tokens
from subquad.utils.fixed_weights import once

_softmax_backward = torch.ops.aten._softmax_backward_data


def luna(
    x: Tokens, context: Context, latent: Float[Tensor, "c l d"], mask: ContextMask, slots: Bool[Tensor, "s l"] | None,
    weights: Sequence[Tensor], heads: int, dropout_p: float,
) -> tuple[Tokens, Float[Tensor, "b l d"]]:  # fmt: skip
    """Y and P' of `subquad.attention.luna.Luna`, with dropout of the weights of unpacking.

    Args:
        mask: True at the tokens of the context that are read.
        slots: True at the rows of P' that are read.
        weights: W_pq, b_pq, W_pk, W_pv, b_pv, W_q, b_q, W_k, b_k, W_v, b_v, W_o and b_o.
    """
    inputs, dtype = ((x,) if context is x else (x, context)), product_type(x)
    hidden, hidden_slots = None if mask is None else ~mask, None if slots is None else ~slots.mT
    with torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, latent, *weights)):
            settings = dtype, heads, dropout_p, hidden, hidden_slots, len(inputs)
            y, packed = _Luna.apply(*settings, *inputs, latent, *weights)
            return y, packed
        own = once((weights[0], "packed", dtype), lambda: _packed(dtype, weights), *weights)

        def queries() -> Tensor:
            rows = latent.transpose(0, 1).to(dtype, memory_format=torch.contiguous_format)
            return _queries(heads, rows, *own[:3])[1]

        g = once((weights[0], "queries", dtype), queries, latent, *weights) if len(latent) == 1 else queries()
        tokens = [t.to(dtype) for t in inputs]
        packed = _pack(heads, tokens[-1], hidden, g, *own[3:5])[0]
        _, (_, o), _, dropped, _ = _unpack(heads, dropout_p, tokens[0], packed, hidden_slots, *own[5:9])
        del tokens  # what was cast
        return _read(dropped, o, own[9]), packed.transpose(0, 1)


def _packed(dtype: torch.dtype, weights: Sequence[Tensor], *others: Tensor) -> list[Tensor]:
    """W_pq, b_pq, W_pk, W_pv, b_pv, [W_k; W_v], [b_k; b_v], [W_q; W_oᵀ], b_q, b_o and the others, of this type."""
    w_pq, b_pq, w_pk, w_pv, b_pv, w_q, b_q, w_k, b_k, w_v, b_v, w_o, b_o = weights
    d = len(w_q)
    w_kv, b_kv, w_qo = (w_q.new_empty(shape, dtype=dtype) for shape in ((2, d, d), (2, d), (2, d, d)))
    sources = [w_k, w_v, b_k, b_v, w_q, w_o.mT]
    whole = [w_pq, b_pq, w_pk, w_pv, b_pv, w_kv.flatten(0, 1), b_kv.flatten(), w_qo, b_q, b_o, *others]
    return copy_and_cast([*w_kv, *b_kv, *w_qo], sources, whole, dtype)


def _heads(x: Float[Tensor, "r c"], heads: int) -> Float[Tensor, "h r e"]:
    """A view."""
    return x.view(len(x), heads, -1).transpose(0, 1)


def _times(a: Tensor, b: Tensor, factor: float, out: Tensor | None = None) -> Tensor:
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=factor, out=out)


def _queries(
    heads: int, latent: Float[Tensor, "l c d"], w_pq: Tensor, b_pq: Tensor, w_pk: Tensor
) -> tuple[Float[Tensor, "lc d"], Float[Tensor, "hl c d"]]:
    """P W_pq, and in each head its product with W_pkᵀ / √d_h, which multiplies the context."""
    _, c, d = latent.shape
    queries = torch.addmm(b_pq, latent.reshape(-1, d), w_pq.mT)
    g = _times(_heads(queries, heads), w_pk.view(heads, -1, d), (d // heads) ** -0.5)
    return queries, g.view(-1, c, d)


def _pack(
    heads: int, context: Context, hidden: ContextMask, g: Float[Tensor, "hl c d"],
    w_pv: Tensor, b_pv: Tensor,
) -> tuple[Float[Tensor, "l b d"], Float[Tensor, "hl b m"], Float[Tensor, "h lb d"]]:  # fmt: skip
    """P', the weights of packing, and the weighted means of the context."""
    b, m, d = context.shape
    weights = context.new_empty(len(g), b, m)
    torch.bmm(g.transpose(0, 1).expand(b, -1, -1), context.mT, out=weights.transpose(0, 1))
    if hidden is not None:
        weights.masked_fill_(hidden, torch.finfo(weights.dtype).min)
    torch.softmax(weights, -1, out=weights)
    if hidden is not None:
        weights.masked_fill_(hidden, 0)
    means = context.new_empty(len(g), b, d)
    torch.bmm(weights.transpose(0, 1), context, out=means.transpose(0, 1))
    means = means.view(heads, -1, d)
    packed = context.new_empty(means.shape[1], d)
    # Rows of the weights sum to 1, so A (C W + b) = (A C) W + b.
    torch.baddbmm(b_pv.view(heads, 1, -1), means, w_pv.view(heads, -1, d).mT, out=_heads(packed, heads))
    return packed.view(-1, b, d), weights, means


def _unpack(
    heads: int, dropout_p: float, x: Tokens, packed: Float[Tensor, "l b d"],
    hidden: Bool[Tensor, "l s"] | None, w_kv: Tensor, b_kv: Tensor, w_qo: Tensor, b_q: Tensor,
) -> tuple[Any, ...]:  # fmt: skip
    """Keys and values, the rows that x and the weights multiply, the weights, and what dropout leaves and keeps."""
    (slots, b, d), scale = packed.shape, (x.shape[2] // heads) ** -0.5
    kv = torch.addmm(b_kv, packed.view(-1, d), w_kv.mT)
    of_heads = _heads(kv, 2 * heads)
    rows = torch.bmm(of_heads, w_qo.view(2 * heads, -1, d))
    bias = torch.bmm(of_heads[:heads], b_q.view(heads, -1, 1)).view(heads, slots, b)
    rows = rows.view(2, heads, slots, b, d)
    if hidden is not None:
        # A small logit hides a slot; a row of the batch whose slots are all hidden gets zeros.
        bias.masked_fill_(hidden, torch.finfo(bias.dtype).min / 2)
        rows[1].masked_fill_(hidden[..., None], 0)
    r = rows[0].view(-1, b, d).permute(1, 2, 0)
    weights = torch.baddbmm(bias.view(-1, b, 1).permute(1, 2, 0), x, r, beta=scale, alpha=scale)
    weights = weights.view(b, -1, heads, slots)
    torch.softmax(weights, -1, out=weights)
    dropped, kept = torch.native_dropout(weights, dropout_p, True) if dropout_p else (weights, None)
    return kv, rows, weights, dropped, kept


def _read(weights: Float[Tensor, "b n h l"], o: Float[Tensor, "h l b d"], b_o: Tensor) -> Tokens:
    return torch.baddbmm(b_o, weights.flatten(2), o.flatten(0, 1).transpose(0, 1))


class _Luna(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, heads: int, dropout_p: float, hidden: Tensor | None, hidden_slots: Tensor | None,
        inputs: int, *given: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        *tokens, latent = given[: inputs + 1]
        *own, rows = _packed(dtype, given[inputs + 1 :], latent.transpose(0, 1))
        tokens = [t.to(dtype) for t in tokens]
        queries, g = _queries(heads, rows, *own[:3])
        packed, *of_pack = _pack(heads, tokens[-1], hidden, g, *own[3:5])
        of_unpack = _unpack(heads, dropout_p, tokens[0], packed, hidden_slots, *own[5:9])
        ctx.heads, ctx.dropout_p, ctx.inputs, ctx.dtypes = heads, dropout_p, inputs, [t.dtype for t in given]
        ctx.save_for_backward(
            *tokens[:1], tokens[-1], hidden_slots, rows, *own[:4], own[5], *own[7:9], queries, g, packed,
            *of_pack, *of_unpack,
        )  # fmt: skip
        ctx.set_materialize_grads(False)
        return _read(of_unpack[3], of_unpack[1][1], own[9]), packed.transpose(0, 1)

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor | None, d_result: Tensor | None) -> tuple[Tensor | None, ...]:
        x, context, hidden_slots, latent, w_pq, _, w_pk, w_pv, w_kv, w_qo, b_q, queries, g, packed, *kept = (
            ctx.saved_tensors
        )
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        packing, means, kv, rows, weights, dropped, not_dropped = kept
        del kept
        heads, (slots, b, d), n = ctx.heads, packed.shape, x.shape[1]
        scale = (d // heads) ** -0.5
        dy = torch.zeros_like(x) if dy is None else dy.to(x.dtype)
        # Unpacking.
        d_rows = torch.empty_like(rows)
        d_r, d_o = d_rows.view(2, -1, b, d)
        torch.bmm(dropped.view(b, n, -1).mT, dy, out=d_o.transpose(0, 1))
        r, o = rows.view(2, -1, b, d)
        if not_dropped is None:  # what slots have in common cancels in the softmax, in half precision only if left out
            o = (rows[1] - rows[1].mean(1, keepdim=True)).view_as(o)
        d_logits = torch.bmm(dy, o.permute(1, 2, 0)).view_as(weights)
        del dropped
        if hidden_slots is not None:
            d_rows[1].masked_fill_(hidden_slots[..., None], 0)
        if not_dropped is not None:
            d_logits = torch.ops.aten.native_dropout_backward(d_logits, not_dropped, 1 / (1 - ctx.dropout_p))
        _softmax_backward.out(d_logits, weights, -1, weights.dtype, grad_input=d_logits)
        d_logits = d_logits.view(b, n, -1)
        del weights, not_dropped
        _times(d_logits.mT, x, scale, out=d_r.transpose(0, 1))
        d_x = _times(d_logits, r.transpose(0, 1), scale)
        d_bias = d_logits.sum(1).mT.reshape(heads, -1, 1).mul_(scale)
        of_heads = _heads(kv, 2 * heads)
        d_rows, d_kv = d_rows.view(2 * heads, -1, d), torch.empty_like(kv)
        of_kv = _heads(d_kv, 2 * heads)
        torch.bmm(d_rows, w_qo.view(2 * heads, -1, d).mT, out=of_kv)
        of_kv[:heads].baddbmm_(d_bias, b_q.view(heads, 1, -1))
        d_wqo = torch.bmm(of_heads.mT, d_rows).view(2, d, d)
        d_bq = torch.bmm(of_heads[:heads].mT, d_bias).flatten()
        d_wkv, d_bkv = d_kv.mT @ packed.view(-1, d), d_kv.sum(0)
        # Packing.
        d_packed = d_kv @ w_kv
        if d_result is not None:
            d_packed.view_as(packed).add_(d_result.transpose(0, 1))
        of_packed = _heads(d_packed, heads)
        d_wpv = torch.bmm(of_packed.mT, means).view(d, d)
        d_means = torch.bmm(of_packed, w_pv.view(heads, -1, d)).view(-1, b, d).transpose(0, 1)
        d_logits = torch.empty_like(packing)
        torch.bmm(d_means, context.mT, out=d_logits.transpose(0, 1))
        _softmax_backward.out(d_logits, packing, -1, packing.dtype, grad_input=d_logits)
        d_context = d_x if ctx.inputs == 1 else torch.zeros_like(context)
        d_context.baddbmm_(packing.permute(1, 2, 0), d_means)
        d_context.baddbmm_(d_logits.permute(1, 2, 0), g.transpose(0, 1).expand(b, -1, -1))
        d_g = torch.empty_like(g)
        if g.shape[1] == 1:  # latents that are the same for all rows
            torch.mm(d_logits.view(len(g), -1), context.reshape(-1, d), out=d_g[:, 0])
        else:
            torch.bmm(d_logits.transpose(0, 1), context, out=d_g.transpose(0, 1))
        d_g = d_g.view(heads, -1, d)
        d_queries = torch.empty_like(queries)
        _times(d_g, w_pk.view(heads, -1, d).mT, scale, out=_heads(d_queries, heads))
        d_wpk = _times(_heads(queries, heads).mT, d_g, scale).view(d, d)
        d_wpq = d_queries.mT @ latent.reshape(-1, d)
        d_latent = (d_queries @ w_pq).view(slots, -1, d).transpose(0, 1)
        (d_wq, d_wo), (d_wk, d_wv), (d_bk, d_bv) = d_wqo, d_wkv.view(2, d, d), d_bkv.view(2, d)
        gradients = [
            *([d_x] if ctx.inputs == 1 else [d_x, d_context]), d_latent, d_wpq, d_queries.sum(0), d_wpk, d_wpv,
            d_packed.sum(0), d_wq, d_bq, d_wk, d_bk, d_wv, d_bv, d_wo.mT, dy.sum((0, 1)),
        ]  # fmt: skip
        return None, None, None, None, None, None, *cast(ctx.dtypes, gradients)
