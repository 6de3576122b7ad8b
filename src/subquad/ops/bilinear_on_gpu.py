"""DBA's self-attention in few operators, with its derivative written out.

A GPU computes the products of d_p rows faster than its host starts them. So R is applied to the projected rows, where
`subquad.ops.bilinear` multiplies W_Q and W_K by it: more multiplications, but the three maps are one product. Tensors
have the axes [row of d_p, row of the batch, ...], in which heads are a part of the batch without a copy. One operator
copies all weights to the buffers of their products and casts them under autocast, which is off inside.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.mixed_precision import cast, copy_and_cast, product_type, written_out
from subquad.specs import Mask, Tokens
from subquad.utils.fixed_weights import keeps_products, once


def bilinear(
    x: Tokens, z: Float[Tensor, "#b p d"], keep: Mask, weights: tuple[Tensor, ...], dropout_p: float, heads: int,
    logit_scale: float, scale: float,
) -> tuple[Tokens, Float[Tensor, "b 3*p d"]]:  # fmt: skip
    """Y and A of `subquad.ops.bilinear.bilinear`, with dropout of the weights P.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, F_c, b_c, F_r, b_r, W_O, b_O and R.
    """
    device, dtype = x.device.type, product_type(x)
    settings = heads, logit_scale, scale, keep, dropout_p
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, z, *weights)):
            y, a = _Bilinear.apply(dtype, *settings, x, z, *weights)
            return y, a
        if keeps_products() and dropout_p == 0 and len(z) == 1 and len(weights[-1]) <= x.shape[2]:

            def products() -> tuple[Tensor, ...]:
                return _products(z, weights, heads, logit_scale, dtype)

            kept = once((weights[0], dtype), products, z, *weights)
            a, w_r, o = _inferred(x.to(dtype), keep, heads, scale, *kept)
        else:
            packed = _packed(z, weights, logit_scale, dtype)
            a, w_r, o = _compressed(*settings, x.to(dtype), *packed)[:3]
        return _expanded(w_r, o), a


def _products(
    z: Tensor, weights: tuple[Tensor, ...], heads: int, logit_scale: float, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The maps R W_Q, R W_K (rows of each head padded to its width) and W_V, rows of X, and W_O, each with biases."""
    w_q, b_q, w_k, _, w_v, b_v, f_c, b_c, f_r, b_r, w_o, b_o, r = weights
    of_head = r.view(heads, -1, r.shape[1])
    r = F.pad(of_head, (0, 0, 0, len(w_q) // heads - of_head.shape[1])).flatten(0, 1)
    f = torch.cat([f_c, f_r]).expand(len(z), -1, -1)
    rows = torch.cat([logit_scale * (z @ w_q), logit_scale * (z @ w_k), f], 1)
    maps, biases = torch.stack([r @ w_q, r @ w_k, w_v]).mT, torch.stack([r @ b_q, torch.zeros_like(b_q), b_v])[:, None]
    results = maps, biases, rows, torch.cat([b_c, b_c, b_c, b_r]), w_o.mT, b_o
    return cast([dtype] * len(results), results)


def _inferred(
    x: Tensor, keep: Tensor | None, heads: int, scale: float, maps: Tensor, biases: Tensor, rows: Tensor,
    row_biases: Tensor, w_o: Tensor, b_o: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A, W'_r and O, given `_products`."""
    b, _, d = x.shape
    _, w_r, a = _weighted(x, keep, rows, row_biases)
    q, k, v = torch.baddbmm(biases, a.flatten(1, 2), maps).view(3, -1, b, heads, d // heads).permute(0, 2, 3, 1, 4)
    u = F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)
    if u.is_contiguous():
        o = torch.addmm(b_o, u.view(-1, d), w_o).view(b, -1, d).transpose(0, 1)
    else:  # the fused kernel keeps the order of the axes of q
        o = torch.addmm(b_o, u.transpose(0, 1).reshape(-1, d), w_o).view(-1, b, d)
    return a.flatten(0, 1).transpose(0, 1), w_r, o


def _weighted(
    x: Tokens, keep: Mask, rows: Float[Tensor, "#b r d"],
    row_biases: Float[Tensor, " r"],
) -> tuple[Float[Tensor, "r_w b n"], Float[Tensor, "p b n"], Float[Tensor, "3 p b d"]]:  # fmt: skip
    """[W_r; W_c; W'_cᵀ], W'_r and A."""
    (b, n, d), p = x.shape, rows.shape[1] // 4
    logits = x.new_empty(4 * p, b, n)
    torch.baddbmm(row_biases[:, None], rows.expand(b, -1, -1), x.mT, out=logits.transpose(0, 1))
    w, w_r = logits.split([3 * p, p])
    if keep is None:
        w = w.softmax(-1)
    else:
        hidden = ~keep
        w = w.masked_fill_(hidden, torch.finfo(w.dtype).min).softmax(-1).masked_fill_(hidden, 0)
    a = x.new_empty(3, p, b, d)
    torch.bmm(w.transpose(0, 1), x, out=a.view(3 * p, b, d).transpose(0, 1))
    return w, w_r.softmax(0), a


def _compressed(
    heads: int, _: float, scale: float, keep: Tensor | None, dropout_p: float, x: Tensor, z: Tensor, maps: Tensor,
    biases: Tensor, rows: Tensor, row_biases: Tensor, w_o: Tensor, b_o: Tensor, r: Tensor,
) -> tuple[Any, ...]:  # fmt: skip
    """A, W'_r and O, of which Y = W'_r O, and the other tensors that the backward pass needs."""
    (b, _n, d), p, e = x.shape, z.shape[1], len(r)
    w, w_r, a = _weighted(x, keep, rows, row_biases)
    qkv = torch.baddbmm(biases[:, None], a.view(3, p * b, d), maps.mT)
    qk = (qkv[:2].view(2 * p * b, d) @ r.mT).view(2, p, b * heads, e // heads)
    q, k = qk.transpose(1, 2)
    v = qkv[2].view(p, b * heads, d // heads).transpose(0, 1)
    mixing = torch.baddbmm(x.new_empty(()), q, k.mT, beta=0, alpha=scale).softmax(-1)
    dropped, kept = torch.native_dropout(mixing, dropout_p, True) if dropout_p else (mixing, None)
    u = x.new_empty(p, b, d)
    torch.bmm(dropped, v, out=u.view(p, b * heads, d // heads).transpose(0, 1))
    o = torch.addmm(b_o, u.view(p * b, d), w_o.mT).view(p, b, d)
    saved = x, z, maps, rows, w_o, r, w, a, qkv, qk, mixing, dropped, kept, u
    return a.view(3 * p, b, d).transpose(0, 1), w_r, o, *saved


def _expanded(w_r: Float[Tensor, "p b n"], o: Float[Tensor, "p b d"]) -> Tokens:
    """Y = W'_r O."""
    return torch.bmm(w_r.permute(1, 2, 0), o.transpose(0, 1))


def _packed(z: Tensor, weights: tuple[Tensor, ...], logit_scale: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Z, [W_Q; W_K; W_V] and their biases, the rows [Z W_Q; Z W_K; F_c; F_r] and theirs, W_O, b_O and R.

    A bias of the first two blocks of rows has no effect on a softmax over the tokens, so b_c serves for these too.
    """
    w_q, b_q, w_k, b_k, w_v, b_v, f_c, b_c, f_r, b_r, w_o, b_o, r = weights
    own, p, d = z.shape

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=z.device)

    maps, biases, rows, row_biases = new(3, d, d), new(3, d), new(own, 4 * p, d), new(4, p)
    to = [*maps, *biases, rows[0, 2 * p : 3 * p], rows[0, 3 * p :], *row_biases]
    sources = [w_q, w_k, w_v, b_q, b_k, b_v, f_c, f_r, b_c, b_c, b_c, b_r]
    z, w_o, b_o, r = copy_and_cast(to, sources, [z, w_o, b_o, r], dtype)
    if own == 1:
        rows[0, : 2 * p].view(2, p, d).baddbmm_(z.expand(2, -1, -1), maps[:2], beta=0, alpha=logit_scale)
    else:
        rows[1:, 2 * p :] = rows[0, 2 * p :]
        for block, weight in zip(rows[:, : 2 * p].split(p, 1), maps, strict=False):
            block.baddbmm_(z, weight.expand(own, -1, -1), beta=0, alpha=logit_scale)
    return z, maps, biases, rows, row_biases.view(-1), w_o, b_o, r


class _Bilinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, heads: int, logit_scale: float, scale: float, keep: Tensor | None,
        dropout_p: float, x: Tensor, z: Tensor, *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        packed = _packed(z, weights, logit_scale, dtype)
        a, *saved = _compressed(heads, logit_scale, scale, keep, dropout_p, x.to(dtype), *packed)
        ctx.heads, ctx.logit_scale, ctx.scale, ctx.dropout_p = heads, logit_scale, scale, dropout_p
        ctx.dtypes = [t.dtype for t in (x, z, *weights)]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return _expanded(*saved[:2]), a

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor | None, d_a: Tensor | None) -> tuple[Tensor | None, ...]:
        w_r, o, x, z, maps, rows, w_o, r, w, a, qkv, qk, mixing, dropped, kept, u = ctx.saved_tensors
        heads, logit_scale, scale = ctx.heads, ctx.logit_scale, ctx.scale
        (b, n, d), p, e = x.shape, z.shape[1], len(r)
        dy = torch.zeros_like(x) if dy is None else dy.to(x.dtype)
        d_logits = x.new_empty(4 * p, b, n)
        d_w_r = x.new_empty(p, b, n)
        torch.bmm(o.transpose(0, 1), dy.mT, out=d_w_r.transpose(0, 1))
        _softmax_backward(d_w_r, w_r, 0, out=d_logits[3 * p :])
        d_o = x.new_empty(p * b, d)
        torch.bmm(w_r.transpose(0, 1), dy, out=d_o.view(p, b, d).transpose(0, 1))
        d_u, d_wo, d_bo = d_o @ w_o, d_o.mT @ u.view(p * b, d), d_o.sum(0)
        # Heads are a part of the batch: [b·h, p, width of a head].
        d_u = d_u.view(p, b * heads, d // heads).transpose(0, 1)
        v = qkv[2].view(p, b * heads, d // heads).transpose(0, 1)
        q, k = qk.transpose(1, 2)
        d_qkv, d_qk = torch.empty_like(qkv), torch.empty_like(qk)
        torch.bmm(dropped.mT, d_u, out=d_qkv[2].view(p, b * heads, d // heads).transpose(0, 1))
        d_mixing = torch.bmm(d_u, v.mT)
        if kept is not None:
            d_mixing = torch.ops.aten.native_dropout_backward(d_mixing, kept, 1 / (1 - ctx.dropout_p))
        d_mixing = _softmax_backward(d_mixing, mixing, -1)
        d_q, d_k = d_qk.transpose(1, 2)
        d_q.baddbmm_(d_mixing, k, beta=0, alpha=scale)
        d_k.baddbmm_(d_mixing.mT, q, beta=0, alpha=scale)
        d_qk = d_qk.view(2 * p * b, e)
        torch.mm(d_qk, r, out=d_qkv[:2].view(2 * p * b, d))
        d_r = d_qk.mT @ qkv[:2].view(2 * p * b, d)
        d_rows_of_a = torch.bmm(d_qkv, maps).view(3 * p, b, d)
        d_maps, d_biases = torch.bmm(d_qkv.mT, a.view(3, p * b, d)), d_qkv.sum(1)
        if d_a is not None:
            d_rows_of_a += d_a.transpose(0, 1)
        d_w = torch.empty_like(w)
        torch.bmm(d_rows_of_a.transpose(0, 1), x.mT, out=d_w.transpose(0, 1))
        _softmax_backward(d_w, w, -1, out=d_logits[: 3 * p])
        d_x = torch.bmm(w.permute(1, 2, 0), d_rows_of_a.transpose(0, 1))
        d_x.baddbmm_(d_logits.permute(1, 2, 0), rows.expand(b, -1, -1))
        d_bc, d_br = d_logits.view(4, p, b * n)[2:].sum(-1)
        if len(z) == 1:
            d_rows = d_logits.view(4 * p, b * n) @ x.reshape(b * n, d)
            d_g, (_, _, d_fc, d_fr) = d_rows[: 2 * p].view(2, p, d), d_rows.split(p)
        else:
            d_rows = torch.bmm(d_logits.transpose(0, 1), x)
            d_g = d_rows[:, : 2 * p].view(b, 2, p, d).transpose(0, 1).reshape(2, b * p, d)
            d_fc, d_fr = d_rows[:, 2 * p :].sum(0).split(p)
        d_maps[:2].baddbmm_(z.view(-1, d).mT.expand(2, -1, -1), d_g, alpha=logit_scale)
        d_z = (d_g[0] @ maps[0].mT).addmm_(d_g[1], maps[1].mT, beta=logit_scale, alpha=logit_scale).view_as(z)
        (d_wq, d_wk, d_wv), (d_bq, d_bk, d_bv) = d_maps, d_biases
        gradients = [
            d_x, d_z, d_wq, d_bq, d_wk, d_bk, d_wv, d_bv, d_fc, d_bc, d_fr, d_br, d_wo, d_bo, d_r,
        ]  # fmt: skip
        return None, None, None, None, None, None, *cast(ctx.dtypes, gradients)


def _softmax_backward(gradient: Tensor, weights: Tensor, axis: int, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(weights) if out is None else out
    torch.ops.aten._softmax_backward_data.out(gradient, weights, axis, weights.dtype, grad_input=out)
    return out
