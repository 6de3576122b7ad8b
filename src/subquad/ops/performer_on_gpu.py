"""Performer on a GPU in few operators, with its derivative written out.

Features are in float32 at least and overwrite their logarithms, as in `subquad.attention.performer`. A softmax over the
features of a query is their exponential up to a factor, which cancels in the output.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.linear_attention_on_gpu import by_head, maps_backward, recorded
from subquad.ops.mixed_precision import cast_at_once, written_out
from subquad.specs import Mask, Tokens

_LEAST = 1e-24
"""Least weight: 1 / w and its gradient are finite."""


def performer(
    x: Tokens, mask: Mask, weights: Sequence[Tensor], directions: Float[Tensor, "f e"], count: int, heads: int,
    eps: float | None,
) -> Tokens:  # fmt: skip
    """The output of `subquad.attention.performer.Performer` in self-attention.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, W_O and b_O.
        directions: rows w_r; those from `count` on have no effect.
        eps: added to ReLU features; None for the features of the softmax kernel.
    """
    keep, hidden = recorded(x, weights), None if mask is None else ~mask
    with cast_at_once(x.contiguous(), *weights) as (x, *maps, w_o, b_o):
        return F.linear(_Performer.apply(keep, heads, count, eps, hidden, directions, x, *maps), w_o, b_o)


class _Performer(torch.autograd.Function):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / w_i in each head."""

    @staticmethod
    def forward(
        ctx: Any, keep: bool, heads: int, count: int, eps: float | None, hidden: Tensor | None, directions: Tensor,
        x: Tensor, *maps: Tensor,
    ) -> Tensor:  # fmt: skip
        projected = (F.linear(x, *linear) for linear in zip(maps[::2], maps[1::2], strict=True))
        q, k, v = (by_head(t, heads).transpose(1, 2) for t in projected)
        sums, of_keys = _sums(k, v, directions, count, eps, hidden)
        kept: list[Tensor | None] = [k if eps is None else None, v, of_keys] if keep else []
        del k, v, of_keys
        y, *of_queries = _read(q, sums, directions, eps)
        if keep:
            ctx.count, ctx.eps = count, eps
            ctx.save_for_backward(x, *maps[::2], *kept, sums, directions, y, *of_queries)
        return y.flatten(-2)

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w_q, w_k, w_v, k, v, of_keys, sums, directions, y, w, of_queries = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        width, factor = directions.shape[1], directions.shape[1] ** -0.25
        ones = sums.shape[-1] - width
        d_products = sums.new_empty(*v.shape[:3], sums.shape[-1])
        d_numerator = d_products[..., :width]
        torch.div(by_head(dy, y.shape[2]).transpose(1, 2), w, out=d_numerator)
        c = (d_numerator * y.transpose(1, 2)).sum(-1, keepdim=True)
        # The columns of ones are equal, and each gets its share of the gradient of w.
        torch.mul(c.expand(-1, -1, -1, ones), -1 / ones, out=d_products[..., width:])
        del c
        d_sums = of_queries.mT @ d_products
        d_features = _logarithm_backward(d_products @ sums.mT, of_queries, ctx.eps)
        del of_queries, d_products, d_numerator
        d_q, d_k, d_v = d_heads = directions.new_empty(3, *v.shape)
        _times(d_features, directions, factor, d_q)
        del d_features
        d_sums[:, :, ctx.count :].zero_()
        d_state, d_normaliser = d_sums.flatten(0, 1)[..., :width], d_sums.flatten(0, 1)[..., width]
        values = d_k.copy_(v).flatten(0, 1)  # in memory that is not in use yet
        d_features = torch.baddbmm(d_normaliser[:, None], values, d_state.mT, beta=ones)
        d_features = _logarithm_backward(d_features.view_as(of_keys), of_keys, ctx.eps)
        _times(d_features, directions, factor, d_k)
        if k is not None:
            d_k.addcmul_(k, d_features.sum(-1, keepdim=True), value=-(width**-0.5))
        del d_features
        torch.bmm(of_keys.flatten(0, 1), d_state, out=d_v.flatten(0, 1))
        del of_keys
        d_raw = x.new_empty(3, *y.shape)
        d_raw.transpose(2, 3).copy_(d_heads)
        del d_q, d_k, d_v, values, d_heads
        d_x, d_weights, d_biases = maps_backward(d_raw.flatten(-2), x, (w_q, w_k, w_v), None)
        of_maps = (t for pair in zip(d_weights, d_biases, strict=True) for t in pair)
        return None, None, None, None, None, None, d_x, *of_maps


def _sums(
    k: Tensor, v: Tensor, directions: Tensor, count: int, eps: float | None, hidden: Tensor | None
) -> tuple[Float[Tensor, "b h f c"], Float[Tensor, "b h n f"]]:
    """Σ_j φ(k_j) [v_j, 1]ᵀ in each head, up to a factor, and φ(k)."""
    width = k.shape[-1]
    # The first added column of ones gives the normaliser; the others pad the width to a multiple of 8.
    values = directions.new_ones(*v.shape[:3], width + 1 + -(width + 1) % 8)
    values[..., :width] = v
    features = _of_keys(_contiguous(k, directions), directions, hidden, eps)
    sums = features.mT @ values
    sums[:, :, count:].zero_()
    return sums, features


def _read(
    q: Tensor, sums: Tensor, directions: Tensor, eps: float | None
) -> tuple[Float[Tensor, "b n h e"], Float[Tensor, "b h n 1"], Float[Tensor, "b h n f"]]:
    """y, w and φ(q), up to a factor of each row."""
    width = q.shape[-1]
    features = _projected(_contiguous(q, directions), directions)
    if eps is None:
        torch.softmax(features, -1, out=features)
    else:
        features.relu_().add_(eps)
    products = features @ sums
    w = products[..., width : width + 1].clamp(min=_LEAST)
    y = q.new_empty(q.shape[0], q.shape[2], q.shape[1], width)
    torch.div(products[..., :width], w, out=y.transpose(1, 2))
    return y, w, features


def _contiguous(x: Float[Tensor, "b h n e"], directions: Tensor) -> Float[Tensor, "b h n e"]:
    """A contiguous copy in the data type of the directions."""
    return directions.new_empty(x.shape).copy_(x)


def _projected(x: Float[Tensor, "b h n e"], directions: Float[Tensor, "f e"]) -> Float[Tensor, "b h n f"]:
    """w_rᵀ x / d_h^{1/4}."""
    y = x.new_empty(*x.shape[:3], len(directions))
    return _times(x, directions.mT, directions.shape[1] ** -0.25, y)


def _times(x: Tensor, matrix: Tensor, factor: float, out: Tensor) -> Tensor:
    rows = out.view(-1, out.shape[-1])
    torch.addmm(x.new_empty(()), x.view(-1, len(matrix)), matrix, beta=0, alpha=factor, out=rows)
    return out


def _of_keys(
    k: Float[Tensor, "b h n e"], directions: Float[Tensor, "f e"], hidden: Mask,
    eps: float | None,
) -> Float[Tensor, "b h n f"]:  # fmt: skip
    """φ of the keys, up to a factor of each row and head; 0 where hidden."""
    features = _projected(k, directions)
    if eps is not None:
        features.relu_().add_(eps)
        return features if hidden is None else features.masked_fill_(hidden[:, None, :, None], 0)
    half = k.shape[-1] ** -0.5 / 2
    norm = torch.linalg.vector_norm(k, dim=-1, keepdim=True)
    if hidden is not None:  # exp(-∞) = 0
        norm.masked_fill_(hidden[:, None, :, None], math.inf)
    largest = features.amax(-1, keepdim=True).addcmul_(norm, norm, value=-half).amax(2, keepdim=True)
    if hidden is not None:
        largest.clamp_(min=torch.finfo(largest.dtype).min)
    return features.sub_(torch.addcmul(largest, norm, norm, value=half)).exp_()


def _logarithm_backward(
    gradient: Float[Tensor, "b h n f"], features: Float[Tensor, "b h n f"], eps: float | None
) -> Float[Tensor, "b h n f"]:
    """The gradient of the projected tokens, in the memory of that of their features."""
    if eps is None:
        return gradient.mul_(features)
    return torch.ops.aten.threshold_backward.grad_input(gradient, features, eps, grad_input=gradient)
