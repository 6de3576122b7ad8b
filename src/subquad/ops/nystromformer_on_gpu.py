"""Nyströmformer's self-attention on a GPU in few operators, with the derivative of its projections written out."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.ops.heads import split_heads
from subquad.ops.linear_attention_on_gpu import maps_backward, projected
from subquad.ops.mixed_precision import cast, cast_at_once, written_out
from subquad.ops.pooling import windows
from subquad.ops.pseudo_inverse_on_gpu import pseudo_inverse
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Mask, Tokens
from subquad.utils.fixed_weights import once


def nystromformer(
    x: Tokens, mask: Mask, weights: Sequence[Tensor], filters: Float[Tensor, "h t"] | None, heads: int, segment: int,
    iterations: int, dropout_p: float,
) -> Tokens:  # fmt: skip
    """The output of `subquad.attention.nystromformer.Nystromformer` with the iterative inverse.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, W_O and b_O.
    """
    parameters = [*weights] if filters is None else [*weights, filters]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)):
        with cast_at_once(x.contiguous(), *parameters) as (x, *own):
            queries, keys, values, of_landmarks, empty = _Projected.apply(segment, mask, x, *own[:6])
            rows = _rows(of_landmarks, keys, values, empty, mask, heads, iterations)
            taps = None if filters is None else _taps(own[8], x.shape[2])
            return _read(queries, of_landmarks[1], rows, values, empty, taps, own[6], own[7], dropout_p)
    with cast_at_once(x.contiguous()) as (x,):

        def kept() -> tuple[Any, ...]:
            w_q, b_q, w_k, b_k, w_v, b_v, w_o, b_o, *taps = cast([x.dtype] * len(parameters), parameters)
            maps = torch.stack([w_q, w_k, w_v]).mT, torch.stack([b_q, b_k, b_v])[:, None]
            return w_q, b_q, *maps, w_o, b_o, _taps(taps[0], x.shape[2]) if taps else None

        w_q, b_q, maps, biases, w_o, b_o, taps = once((weights[0], "packed", x.dtype), kept, *parameters)
        pooled, _, empty = _pooled(x, mask, segment)
        of_landmarks, (keys, values) = _stacked(pooled, maps[:2], biases[:2]), _stacked(x, maps[1:], biases[1:])
        if mask is not None:
            values.masked_fill_(~mask[..., None], 0)
        rows = _rows(of_landmarks, keys, values, empty, mask, heads, iterations)
        return _read(F.linear(x, w_q, b_q), of_landmarks[1], rows, values, empty, taps, w_o, b_o, dropout_p)


def _stacked(x: Tokens, maps: Float[Tensor, "k d e"], biases: Float[Tensor, "k 1 e"]) -> Tensor:
    return torch.baddbmm(biases, x.view(-1, x.shape[2]).expand(len(maps), -1, -1), maps).view(len(maps), *x.shape)


def _taps(filters: Float[Tensor, "h t"], dim: int) -> Float[Tensor, "d 1 t 1"]:
    return filters.repeat_interleave(dim // len(filters), 0)[:, None, :, None]


def _pooled(
    x: Tokens, mask: Mask, segment: int
) -> tuple[Float[Tensor, "b s d"], Float[Tensor, "b s w 1"] | None, Bool[Tensor, "b s"] | None]:
    """Means of the segments, and with a mask the weight of each token and which segments have no token."""
    cut, rest = windows(x, segment), x.shape[1] % segment
    if mask is None:
        pooled = cut.mean(2)
        if rest:
            pooled[:, -1].mul_(segment / rest)
        return pooled, None, None
    real = windows(mask[..., None], segment)
    count = real.sum(2)
    weights = real.to(x.dtype).div_(count.clamp(min=1)[..., None])
    pooled = torch.bmm(weights.flatten(0, 1).mT, cut.flatten(0, 1)).view(len(x), -1, x.shape[2])
    return pooled, weights, count[..., 0] == 0


class _Projected(torch.autograd.Function):
    """Queries, keys and values, the last 0 at padding; queries and keys of the landmarks; and empty segments."""

    @staticmethod
    def forward(ctx: Any, segment: int, mask: Tensor | None, x: Tensor, *maps: Tensor) -> tuple[Tensor | None, ...]:
        pairs = list(zip(maps[::2], maps[1::2], strict=True))
        pooled, weights, empty = _pooled(x, mask, segment)
        of_tokens, of_landmarks = projected(x, pairs), projected(pooled, pairs[:2])
        hidden = None
        if mask is not None:
            hidden = ~mask[..., None]
            of_tokens[2].masked_fill_(hidden, 0)
            ctx.mark_non_differentiable(empty)
        ctx.segment = segment
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, pooled, weights, hidden, *maps[::2])
        return *of_tokens, of_landmarks, empty

    @staticmethod
    @written_out
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, pooled, weights, hidden, *maps = ctx.saved_tensors
        *of_tokens, of_landmarks, _ = gradients
        del gradients
        d_pooled, d_maps, d_biases = maps_backward(of_landmarks, pooled, maps[:2], None)
        stacked = torch.stack(of_tokens)
        del of_tokens
        if hidden is not None:
            stacked[2].masked_fill_(hidden, 0)
        d_x, d_weights, d_all_biases = maps_backward(stacked, x, maps, None)
        d_weights[:2].add_(d_maps)
        d_all_biases[:2].add_(d_biases)
        _spread(d_x, d_pooled, weights, ctx.segment)
        return None, None, d_x, *(t for pair in zip(d_weights, d_all_biases, strict=True) for t in pair)


def _spread(d_x: Tensor, d_pooled: Tensor, weights: Tensor | None, segment: int) -> None:
    """Adds the gradient of the means to that of the tokens."""
    full, rest = divmod(d_x.shape[1], segment)
    for first, last, size in ((0, full, segment), (full, full + 1, rest)):
        if size and last > first:
            part = d_x[:, first * segment : first * segment + (last - first) * size].unflatten(1, (-1, size))
            given = d_pooled[:, first:last, None]
            if weights is None:
                part.add_(given, alpha=1 / size)
            else:
                part.addcmul_(given, weights[:, first:last, :size])


def _rows(
    of_landmarks: Float[Tensor, "2 b s d"], keys: Tokens, values: Tokens,
    empty: Bool[Tensor, "b s"] | None, mask: Mask, heads: int, iterations: int,
) -> Float[Tensor, "b h s e"]:  # fmt: skip
    """Z softmax(Q̃ Kᵀ) V in each head."""
    landmarks = of_landmarks.unflatten(-1, (heads, -1)).transpose(2, 3)
    precise = torch.promote_types(keys.dtype, torch.float32)
    q, k = landmarks.to(precise, memory_format=torch.contiguous_format).flatten(1, 2)
    a = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5).unflatten(0, (-1, heads))
    if empty is None:
        a = a.softmax(-1)
    else:
        hidden = empty[:, None, :, None] | empty[:, None, None]
        a = a.masked_fill(hidden, torch.finfo(precise).min).softmax(-1).masked_fill(hidden, 0)
    z = pseudo_inverse(a.flatten(0, 1), iterations, zeros=empty is not None).to(keys.dtype).view_as(a)
    real = None if mask is None else mask[:, None, None]
    return z @ softmax_attention(landmarks[0], split_heads(keys, heads), split_heads(values, heads), real)


def _read(
    queries: Tokens, k: Float[Tensor, "b s d"], rows: Float[Tensor, "b h s e"],
    values: Tokens, empty: Bool[Tensor, "b s"] | None, taps: Float[Tensor, "d 1 t 1"] | None,
    w_o: Tensor, b_o: Tensor, dropout_p: float,
) -> Tokens:  # fmt: skip
    """(softmax(Q K̃ᵀ) rows + conv(V)) W_O."""
    heads, slots = rows.shape[1], None if empty is None else ~empty[:, None, None]
    y = softmax_attention(split_heads(queries, heads), split_heads(k, heads), rows, slots, dropout_p)
    del queries
    y = y.transpose(1, 2).flatten(2)
    if taps is not None:
        # As an image of width 1 in channels-last order.
        image = F.conv2d(values.mT[..., None], taps, padding=(taps.shape[2] // 2, 0), groups=len(taps))
        y = (y.add if y.requires_grad else y.add_)(image.squeeze(-1).mT)
        del image
    return F.linear(y, w_o, b_o)
