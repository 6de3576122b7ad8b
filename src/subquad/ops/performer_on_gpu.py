"""Performer on a GPU in few operators, with its derivative written out.

Features are in float32 at least and overwrite their logarithms, as in `subquad.attention.performer`. A softmax over the
features of a query is their exponential up to a factor, which cancels in the output.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.kernel_attention_on_gpu import Maps, by_head
from subquad.ops.mixed_precision import cast_at_once, written_out

_LEAST = 1e-24
"""Least weight: 1 / w and its gradient are finite."""


def performer(
    x: Float[Tensor, "b n d"],
    mask: Bool[Tensor, "b n"] | None,
    weights: Sequence[Tensor],
    directions: Float[Tensor, "f e"],
    count: int,
    heads: int,
    eps: float | None,
) -> Float[Tensor, "b n d"]:
    """The output of `subquad.attention.performer.Performer` in self-attention.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, W_O and b_O.
        directions: rows w_r; those from `count` on have no effect.
        eps: added to ReLU features; None for the features of the softmax kernel.
    """
    with cast_at_once(x.contiguous(), *weights) as (x, *maps, w_o, b_o):
        q, k, v = (by_head(t, heads).transpose(1, 2) for t in Maps.apply(x, *maps))
        sums = _Keys.apply(k, v, directions, count, eps, None if mask is None else ~mask)
        return F.linear(_Queries.apply(q, sums, directions, eps), w_o, b_o)


class _Keys(torch.autograd.Function):
    """Σ_j φ(k_j) [v_j, 1]ᵀ in each head, up to a factor."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, v: Tensor, directions: Tensor, count: int, eps: float | None, hidden: Tensor | None
    ) -> Tensor:
        width = k.shape[-1]
        # The first added column of ones gives the normaliser; the others pad the width to a multiple of 8.
        values = directions.new_ones(*v.shape[:3], width + 1 + -(width + 1) % 8)
        values[..., :width] = v
        features = _of_keys(_contiguous(k, directions), directions, hidden, eps)
        sums = features.mT @ values
        sums[:, :, count:].zero_()
        ctx.count, ctx.eps = count, eps
        ctx.save_for_backward(k if eps is None else None, v, features, directions)
        return sums

    @staticmethod
    @written_out
    def backward(ctx: Any, d_sums: Tensor) -> tuple[Tensor | None, ...]:
        k, v, features, directions = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        d_sums[:, :, ctx.count :].zero_()
        width = directions.shape[1]
        d_state, d_normaliser = d_sums[..., :width], d_sums[..., width]
        values = _contiguous(v, directions).flatten(0, 1)
        d_features = torch.baddbmm(d_normaliser.flatten(0, 1)[:, None], values, d_state.flatten(0, 1).mT)
        d_features = _logarithm_backward(d_features.view_as(features), features, ctx.eps)
        d_k = _times(d_features, directions, width**-0.25, values.view(v.shape))  # no longer needed
        if k is not None:
            d_k.addcmul_(k, d_features.sum(-1, keepdim=True), value=-(width**-0.5))
        del d_features
        return _narrow(d_k, v.dtype), _narrow(features @ d_state, v.dtype), None, None, None, None


class _Queries(torch.autograd.Function):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / w_i, where the sums over the keys hold w_i beside the values."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, sums: Tensor, directions: Tensor, eps: float | None) -> Tensor:
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
        ctx.eps = eps
        ctx.save_for_backward(y, w, sums, features, directions)
        return y.flatten(-2)

    @staticmethod
    @written_out
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        y, w, sums, features, directions = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, so that `del` frees memory
        d_products = sums.new_zeros(*features.shape[:3], sums.shape[-1])
        d_numerator = d_products[..., : y.shape[-1]]
        torch.div(by_head(dy, y.shape[2]).transpose(1, 2), w, out=d_numerator)
        torch.neg((d_numerator * y.transpose(1, 2)).sum(-1), out=d_products[..., y.shape[-1]])
        d_sums = features.mT @ d_products
        d_features = _logarithm_backward(d_products @ sums.mT, features, ctx.eps)
        del features
        d_q = _times(d_features, directions, y.shape[-1] ** -0.25, d_numerator)  # in memory that is no longer needed
        return _narrow(d_q, y.dtype), d_sums, None, None


def _contiguous(x: Float[Tensor, "b h n e"], directions: Tensor) -> Float[Tensor, "b h n e"]:
    """A contiguous copy in the data type of the directions."""
    return directions.new_empty(x.shape).copy_(x)


def _narrow(x: Float[Tensor, "b h n e"], dtype: torch.dtype) -> Float[Tensor, "b h n e"]:
    """A copy with the strides of a linear map."""
    b, h, n, e = x.shape
    return torch.empty(b, n, h, e, dtype=dtype, device=x.device).transpose(1, 2).copy_(x)


def _projected(x: Float[Tensor, "b h n e"], directions: Float[Tensor, "f e"]) -> Float[Tensor, "b h n f"]:
    """w_rᵀ x / d_h^{1/4}."""
    y = x.new_empty(*x.shape[:3], len(directions))
    return _times(x, directions.mT, directions.shape[1] ** -0.25, y)


def _times(x: Tensor, matrix: Tensor, factor: float, out: Tensor) -> Tensor:
    rows = out.view(-1, out.shape[-1])
    torch.addmm(x.new_empty(()), x.view(-1, len(matrix)), matrix, beta=0, alpha=factor, out=rows)
    return out


def _of_keys(
    k: Float[Tensor, "b h n e"], directions: Float[Tensor, "f e"], hidden: Bool[Tensor, "b n"] | None,
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
