"""DBA's self-attention with its derivative written out.

All products but those of size n x d_p x d are so small that recording them for autograd takes longer than computing
them. On a CPU, a kernel of this package may replace torch's operators.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.kernels import bilinear_kernel as kernel
from subquad.ops.bilinear_on_gpu import bilinear as bilinear_on_gpu
from subquad.ops.dropout import dropout
from subquad.ops.heads import split_heads
from subquad.ops.masks import masked_softmax
from subquad.specs import Mask, Tokens
from subquad.utils.derivatives import first_order
from subquad.utils.devices import on_gpu

Map = tuple[Tensor, Tensor]
"""Weight and bias of a linear map."""


def bilinear(
    x: Tokens, z: Float[Tensor, "#b p d"], keep: Mask, maps: Sequence[Map], r: Float[Tensor, "e d"], dropout_p: float,
    heads: int, logit_scale: float, scale: float,
) -> tuple[Tokens, Float[Tensor, "b 3*p d"]]:  # fmt: skip
    """Y and A of `subquad.attention.dba.DBA` with one compression for all heads and both W' normalised.

        A = [W_r; W_c; W'_cᵀ] X = softmax_n([Z W_Q; Z W_K; F_c] Xᵀ) X     over the tokens that `keep` shows
        P = dropout(softmax(scale · (A_r W_Q R)(A_c W_K R)ᵀ))              in each head
        Y = softmax_p(X F_rᵀ) P (A_v W_V) W_O

    R multiplies W_Q and W_K and not the rows of A, because Z multiplies both weights anyway. Biases are left out above;
    those of W_K and F_c add the same to all logits of a softmax and have no effect. `logit_scale` multiplies Z W_Q and
    Z W_K.
    """
    every = (*(t for m in maps for t in m), r)
    if on_gpu(x):
        return bilinear_on_gpu(x, z, keep, every, dropout_p, heads, logit_scale, scale)
    noise = None
    if dropout_p > 0:
        noise = dropout(x.new_ones(x.shape[0], heads, z.shape[1], z.shape[1]), dropout_p, training=True)
    (w_q, b_q), (w_k, b_k), (w_v, b_v), (f_c, b_c), (f_r, b_r), (w_o, b_o) = maps
    weights = (w_q, b_q, w_k, w_v, b_v, f_c, f_r, b_r, w_o, b_o, r)
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (x, z, *weights))
    if noise is None and logit_scale == 1 and kernel.takes(x, z, weights, heads, gradients):
        if gradients:
            y, a = _ByKernel.apply(heads, scale, keep, b_k, b_c, x, z, *weights)
        else:
            y, a, _ = kernel.bilinear(x, z, weights, keep, heads, scale)
        return y, a
    arguments: tuple[Any, ...] = (heads, logit_scale, scale, keep, noise, x, z, *every)
    y, a, *_ = _Bilinear.apply(*arguments) if gradients else _forward(*arguments)
    return y, a


class _ByKernel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, heads: int, scale: float, keep: Tensor | None, b_k: Tensor, b_c: Tensor, x: Tensor, z: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        y, a, kept = kernel.bilinear(x, z, weights, keep, heads, scale, gradients=True)
        ctx.heads, ctx.scale = heads, scale
        ctx.save_for_backward(keep, b_k, b_c, a, kept, x, z, *weights)
        ctx.set_materialize_grads(False)
        return y, a

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor | None, d_a: Tensor | None) -> tuple[Tensor | None, ...]:
        keep, b_k, b_c, a, kept, x, z, *weights = ctx.saved_tensors
        dy = torch.zeros_like(x) if dy is None else dy
        gradients = kernel.backward(dy, d_a, x, z, weights, keep, ctx.heads, ctx.scale, a, kept)
        return None, None, None, torch.zeros_like(b_k), torch.zeros_like(b_c), *gradients


def _forward(
    heads: int, logit_scale: float, scale: float, keep: Tensor | None, noise: Tensor | None, x: Tensor, z: Tensor,
    w_q: Tensor, b_q: Tensor, w_k: Tensor, _b_k: Tensor, w_v: Tensor, b_v: Tensor, f_c: Tensor, _b_c: Tensor,
    f_r: Tensor, b_r: Tensor, w_o: Tensor, b_o: Tensor, r: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Y, A and the tensors that the backward pass needs."""
    p, e = len(f_r), len(r)
    z_r = torch.cat([(z * logit_scale).flatten(0, 1), r * scale**0.5])  # both factors of W_Q and W_K in one product
    g_q, r_q = (z_r @ w_q).split([len(z_r) - e, e])
    g_k, r_k = (z_r @ w_k).split([len(z_r) - e, e])
    parts = g_q.view_as(z), g_k.view_as(z), f_c.expand(z.shape[0], -1, -1), f_r.expand(z.shape[0], -1, -1)
    rows = torch.cat(parts, 1).expand(x.shape[0], -1, -1)
    logits = torch.bmm(rows, x.mT)
    compression = masked_softmax(logits[:, : 3 * p], None if keep is None else keep[:, None])
    expansion = (logits[:, 3 * p :] + b_r[:, None]).softmax(1)
    a = torch.bmm(compression, x)
    a_q, a_k, a_v = a.split(p, 1)
    q = split_heads(F.linear(a_q, r_q, (b_q[None] @ z_r[-e:].mT)[0]), heads)
    k = split_heads(F.linear(a_k, r_k), heads)
    v = split_heads(F.linear(a_v, w_v, b_v), heads)
    mixing = (q @ k.mT).softmax(-1)
    u = ((mixing if noise is None else mixing * noise) @ v).transpose(1, 2).flatten(-2)
    o = F.linear(u, w_o, b_o)
    return torch.bmm(expansion.mT, o), a, z_r, r_q, r_k, rows, compression, expansion, q, k, v, mixing, u, o


class _Bilinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, heads: int, logit_scale: float, scale: float, keep: Tensor | None, noise: Tensor | None,
        x: Tensor, *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        y, *kept = _forward(heads, logit_scale, scale, keep, noise, x, *parameters)
        ctx.heads, ctx.logit_scale, ctx.scale = heads, logit_scale, scale
        ctx.save_for_backward(noise, x, *parameters, *kept)
        ctx.set_materialize_grads(False)
        return y, kept[0]

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor | None, d_a: Tensor | None) -> tuple[Tensor | None, ...]:
        noise, x, z, w_q, b_q, w_k, _, w_v, _, _, _, f_r, _, w_o, _, r, *kept = ctx.saved_tensors
        a, z_r, r_q, r_k, rows, compression, expansion, q, k, v, mixing, u, o = kept
        p, e = len(f_r), len(r)
        a_q, a_k, a_v = a.split(p, 1)
        dy = torch.zeros_like(x) if dy is None else dy
        d_expansion = _softmax_backward(torch.bmm(o, dy.mT), expansion, 1)
        d_wo, d_bo, d_u = _linear_backward(torch.bmm(expansion, dy), u, w_o)
        d_u = split_heads(d_u, ctx.heads)
        d_mixing = d_u @ v.mT
        dropped = mixing
        if noise is not None:
            d_mixing, dropped = d_mixing * noise, mixing * noise
        d_wv, d_bv, d_av = _linear_backward(_merge(dropped.mT @ d_u), a_v, w_v)
        d_mixing = _softmax_backward(d_mixing, mixing, -1)
        d_rq, d_rbq, d_aq = _linear_backward(_merge(d_mixing @ k), a_q, r_q)
        d_rk, d_rbk, d_ak = _linear_backward(_merge(d_mixing.mT @ q), a_k, r_k)
        d_rows_of_a = torch.cat([d_aq, d_ak, d_av], 1)
        d_a = d_rows_of_a if d_a is None else d_rows_of_a.add_(d_a)
        d_logits = torch.cat([_softmax_backward(torch.bmm(d_a, x.mT), compression, -1), d_expansion], 1)
        d_x = torch.bmm(compression.mT, d_a).baddbmm_(d_logits.mT, rows)
        d_bc, d_br = d_logits[:, 2 * p :].sum((0, 2)).split(p)
        d_rows = torch.bmm(d_logits, x)
        summed = d_rows.sum(0, keepdim=True)
        d_g = summed if len(z) == 1 else d_rows
        d_q = torch.cat([d_g[:, :p].flatten(0, 1), d_rq])
        d_k = torch.cat([d_g[:, p : 2 * p].flatten(0, 1), d_rk])
        d_z, d_r = (d_q @ w_q.mT).addmm_(d_k, w_k.mT).split([len(z_r) - e, e])
        d_r = (d_r + d_rbq[:, None] * b_q).mul_(ctx.scale**0.5)
        d_bq, d_bk = torch.stack([d_rbq, d_rbk]) @ z_r[-e:]
        d_fc, d_fr = summed[0, 2 * p :].split(p)
        d_maps = (
            z_r.mT @ d_q, d_bq, z_r.mT @ d_k, d_bk, d_wv, d_bv, d_fc, d_bc, d_fr, d_br, d_wo, d_bo,
        )  # fmt: skip
        return None, None, None, None, None, d_x, d_z.view_as(z) * ctx.logit_scale, *d_maps, d_r


def _linear_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the weight, the bias and the input of x Wᵀ + b."""
    rows = gradient.flatten(0, 1)
    return rows.mT @ x.flatten(0, 1), rows.sum(0), gradient @ weight


def _softmax_backward(gradient: Tensor, weights: Tensor, axis: int) -> Tensor:
    result: Tensor = torch.ops.aten._softmax_backward_data(gradient, weights, axis, weights.dtype)
    return result


def _merge(x: Float[Tensor, "b h p e"]) -> Float[Tensor, "b p d"]:
    return x.transpose(1, 2).flatten(-2)
