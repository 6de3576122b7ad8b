"""Queries, keys and values of scaled heads on a GPU in few operators, with their derivative written out.

Keys and values of the heads of one scale are one product, with the rows [W_K; W_V] of these heads. A window is the mean
of its tokens, where padding is 0, divided by the share of its tokens that are real.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.ops.mixed_precision import cast_at_once, written_out
from subquad.ops.scaled_heads import ScaleGroup
from subquad.specs import Context, ContextMask, Tokens

_ALIGNED = 16
"""The bias of a scale begins at a multiple of as many numbers, which the fused kernels of attention need."""


class Operands(NamedTuple):
    """What the heads of one scale attend with."""

    q: Float[Tensor, "b n f"]
    kv: Float[Tensor, "b k 2*f"]
    """Keys, and values beside them."""
    real: Bool[Tensor, "b k"] | None
    """Which windows have real tokens; None if all have."""
    bias: Float[Tensor, "b k"] | None
    """Added to the logits: 0 for windows with real tokens, -∞ for others."""


def attend_by_scale(
    x: Tokens, context: Context, mask: ContextMask, weights: Sequence[Tensor], groups: Sequence[ScaleGroup],
    beta: float | nn.Parameter | None, attend: Callable[[ScaleGroup, Operands], Tensor],
) -> Tokens:  # fmt: skip
    """The output map of what `attend` returns for each group of heads, side by side.

    Args:
        weights: W_Q, b_Q, W_K, b_K, W_V, b_V, W_O and b_O.
        beta: weight of the mean key, which is subtracted from the queries; None without a mean.
        attend: gets a group and its operands in the data type of autocast, which is off, and returns [b, n, f].
    """
    layout, learned = _Layout(groups, context.shape[1]), beta if isinstance(beta, Tensor) else None
    weight = 1.0 if learned is not None else beta
    inputs = [x] if context is x else [x, context]
    with cast_at_once(*weights, *inputs) as cast:
        *pairs, real, bias = _Operands.apply(layout, weight, mask, learned, *cast[:6], *cast[8:])
        w_o, b_o = cast[6:8]
        del cast, inputs, x, context  # so that the copies of autocast are freed
        shown = [
            (None, None) if mask is None else (real[:, s], bias[:, s]) for s in map(layout.slots.get, layout.sizes)
        ]
        parts = (Operands(q, kv, *of_group) for q, kv, of_group in zip(pairs[::2], pairs[1::2], shown, strict=True))
        heads = [attend(*pair) for pair in zip(groups, parts, strict=True)]
        return F.linear(torch.cat(heads, -1) if len(heads) > 1 else heads[0], w_o, b_o)


class _Layout:
    """Where the groups of heads are in their tensors."""

    def __init__(self, groups: Sequence[ScaleGroup], length: int) -> None:
        self.widths = [group.features.stop - group.features.start for group in groups]
        self.sizes = [min(group.scale, length) for group in groups]
        """Tokens of a window of each group."""
        self.number = {size: number for number, size in enumerate(dict.fromkeys(self.sizes))}
        self.slots: dict[int, slice] = {}
        """Windows of each size in a tensor of all windows."""
        start = 0
        for size in sorted({1, *self.sizes}):
            windows = math.ceil(length / size)
            self.slots[size] = slice(start, start + windows)
            start += math.ceil(windows / _ALIGNED) * _ALIGNED
        self.windows = start

    def columns(self, x: Float[Tensor, "*b d"]) -> tuple[Tensor, ...]:
        """The part of each group."""
        return x.split(self.widths, -1)

    def rows(self, packed: Tensor) -> tuple[Tensor, ...]:
        """[W_Q; W_K of group 1; W_V of group 1; W_K of group 2; ...] as W_Q and [W_K; W_V] of each group."""
        return packed.split([len(packed) // 3, *(2 * width for width in self.widths)])

    def parts(self, packed: Sequence[Tensor], maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The same places in packed weights and biases and in the six tensors `maps`."""
        places: list[Tensor] = []
        for tensor in packed:
            places += tensor.split([len(tensor) // 3, *(width for width in self.widths for _ in range(2))])
        others: list[Tensor] = []
        for q, k, v in (maps[::2], maps[1::2]):
            others += q, *(t for pair in zip(k.split(self.widths), v.split(self.widths), strict=True) for t in pair)
        return places, others


class _Operands(torch.autograd.Function):
    """The queries of each group, and its keys beside its values; then which windows are real, and their bias."""

    @staticmethod
    def forward(
        ctx: Any, layout: _Layout, weight: float | None, mask: Tensor | None, learned: Tensor | None, *tensors: Tensor,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        maps, inputs = tensors[:6], [t.contiguous() for t in tensors[6:]]
        x, source = inputs[0], inputs[-1]
        (b, _, d), hidden = source.shape, None if mask is None else ~mask[..., None]
        packed = x.new_empty(3 * d, d), x.new_empty(3 * d)
        torch._foreach_copy_(*layout.parts(packed, maps))
        (w_q, *w_kv), (b_q, *b_kv) = map(layout.rows, packed)
        zeroed = source if hidden is None else source.masked_fill(hidden, 0)
        share, real, bias = (None, None, None) if mask is None else _shares(mask, layout, x.dtype)
        tokens = {1: source}
        for size in layout.number.keys() - {1}:
            tokens[size] = _means(zeroed, size)
            if share is not None:
                tokens[size].div_(share[:, layout.slots[size], None])
        counts = means = mean_keys = None
        if weight is None:
            q = torch.addmm(b_q, x.view(-1, d), w_q.mT).view(x.shape)
        else:
            counts, means = _mean_windows({**tokens, 1: zeroed}, real, layout)
            mean_keys, shift = x.new_empty(b, d), x.new_empty(b, d)
            for size, width, w, of_kv, out in zip(
                layout.sizes, layout.widths, w_kv, b_kv, layout.columns(mean_keys), strict=True
            ):
                torch.addmm(of_kv[:width], means[layout.number[size]], w[:width].mT, out=out)
            torch.sub(b_q, mean_keys * (weight if learned is None else learned), out=shift)
            q = torch.baddbmm(shift[:, None], x, w_q.mT.expand(b, -1, -1))
        pairs: list[Tensor] = []
        for size, part, w, of_kv in zip(layout.sizes, layout.columns(q), w_kv, b_kv, strict=True):
            pairs += part, torch.addmm(of_kv, tokens[size].view(-1, d), w.mT).view(b, -1, len(w))
        ctx.layout, ctx.weight, ctx.sizes = layout, weight, list(tokens)
        others = hidden, learned, packed[0], share, counts, means, mean_keys
        ctx.save_for_backward(x if len(inputs) == 2 else None, *others, *tokens.values())
        if real is not None:
            ctx.mark_non_differentiable(real, bias)
        ctx.set_materialize_grads(False)  # those of the mask; all others are given
        return *pairs, real, bias

    @staticmethod
    @written_out
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        query, hidden, learned, weights, share, counts, means, mean_keys, *saved = ctx.saved_tensors
        layout, tokens = ctx.layout, dict(zip(ctx.sizes, saved, strict=True))
        x, d = tokens[1] if query is None else query, weights.shape[1]
        d_q, d_kv = torch.empty_like(x), [x.new_empty(g.shape) for g in gradients[1:-2:2]]
        torch._foreach_copy_([*layout.columns(d_q), *d_kv], [*gradients[:-2:2], *gradients[1:-2:2]])
        d_packed = torch.empty_like(weights), weights.new_empty(3 * d)
        (w_q, *w_kv), (d_wq, *d_wkv), (d_bq, *d_bkv) = map(layout.rows, (weights, *d_packed))
        rows_q, rows_kv = d_q.view(-1, d), [t.view(-1, t.shape[2]) for t in d_kv]
        torch.mm(rows_q.mT, x.view(-1, d), out=d_wq)
        for size, rows, d_w, d_b in zip(layout.sizes, rows_kv, d_wkv, d_bkv, strict=True):
            torch.mm(rows.mT, tokens[size].view(-1, d), out=d_w)
            torch.sum(rows, 0, out=d_b)
        d_learned = d_means = None
        if means is None:
            torch.sum(rows_q, 0, out=d_bq)
        else:
            d_shift = d_q.sum(1)
            torch.sum(d_shift, 0, out=d_bq)
            d_mean_keys = torch.empty_like(d_shift)
            torch.mul(d_shift, ctx.weight if learned is None else learned, out=d_mean_keys).neg_()
            if learned is not None:
                d_learned = (d_shift * mean_keys).sum(dtype=learned.dtype).neg().view_as(learned)
            d_means = _mean_keys_backward(layout, d_mean_keys, means, counts, w_kv, d_wkv, d_bkv)
        d_source = _tokens_backward(layout, tokens, hidden, share, rows_kv, w_kv, d_means)
        if query is None:
            d_inputs = [d_source.view(-1, d).addmm_(rows_q, w_q).view(x.shape)]
        else:
            d_inputs = [torch.mm(rows_q, w_q).view(x.shape), d_source]
        d_maps = [x.new_empty(shape) for _ in range(3) for shape in ((d, d), (d,))]
        places, of_maps = layout.parts(d_packed, d_maps)
        torch._foreach_copy_(of_maps, places)
        return None, None, None, d_learned, *d_maps, *d_inputs


def _mean_keys_backward(
    layout: _Layout, d_mean_keys: Tensor, means: Tensor, counts: Tensor | None, w_kv: Sequence[Tensor],
    d_wkv: Sequence[Tensor], d_bkv: Sequence[Tensor],
) -> Float[Tensor, "s b d"]:  # fmt: skip
    """The gradient of the sums that the mean windows are shares of; adds to those of weights and biases."""
    d_means = torch.zeros_like(means)
    for size, d_key, w, d_w, d_b in zip(layout.sizes, layout.columns(d_mean_keys), w_kv, d_wkv, d_bkv, strict=True):
        number, width = layout.number[size], d_key.shape[1]
        d_w[:width].addmm_(d_key.mT, means[number])
        d_b[:width].add_(d_key.sum(0))
        d_means[number].addmm_(d_key, w[:width])
    return d_means if counts is None else d_means.div_(counts)


def _tokens_backward(
    layout: _Layout, tokens: dict[int, Tensor], hidden: Tensor | None, share: Tensor | None,
    rows_kv: Sequence[Tensor], w_kv: Sequence[Tensor], d_means: Tensor | None,
) -> Context:  # fmt: skip
    """The gradient of the context: what passes through windows and means, which is 0 for padding, and the rest."""
    d_source = torch.zeros_like(tokens[1])

    def add_products(to: Tensor, size: int) -> None:
        for of_group, rows, w in zip(layout.sizes, rows_kv, w_kv, strict=True):
            if of_group == size:
                to.view(-1, to.shape[2]).addmm_(rows, w)

    for size, number in layout.number.items():
        d_tokens = d_source if size == 1 else torch.zeros_like(tokens[size])
        if size > 1:
            add_products(d_tokens, size)
        if d_means is not None:
            d_tokens.add_(d_means[number, :, None], alpha=1 / d_tokens.shape[1])
        if size > 1:
            if share is not None:
                d_tokens.div_(share[:, layout.slots[size], None])
            _add_means_backward(d_source, d_tokens, size)
    if hidden is not None:
        d_source.masked_fill_(hidden, 0)
    add_products(d_source, 1)
    return d_source


def _shares(mask: Bool[Tensor, "b m"], layout: _Layout, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The share of real tokens of all windows, or a positive number without any; which have any; and their bias."""
    wide = torch.promote_types(dtype, torch.float32)
    share = torch.empty(len(mask), layout.windows, dtype=wide, device=mask.device)
    of_tokens = share[:, layout.slots[1]].copy_(mask)
    for size, slot in layout.slots.items():
        if size > 1:
            _means(of_tokens[..., None], size, out=share[:, slot, None])
    real = share > 0
    bias = torch.log(real, out=torch.empty_like(share, dtype=dtype))  # log 1 = 0, log 0 = -∞
    return share.clamp_(min=1 / max(layout.slots)), real, bias


def _means(x: Float[Tensor, "b m c"], size: int, out: Tensor | None = None) -> Float[Tensor, "b k c"]:
    """Means over windows of `size` tokens; the last window may be shorter."""
    b, m, width = x.shape
    out = x.new_empty(b, math.ceil(m / size), width) if out is None else out
    whole = m // size
    torch.mean(x[:, : whole * size].unflatten(1, (whole, size)), 2, out=out[:, :whole])
    if m % size:
        torch.mean(x[:, whole * size :], 1, keepdim=True, out=out[:, whole:])
    return out


def _add_means_backward(d_x: Float[Tensor, "b m c"], gradient: Float[Tensor, "b k c"], size: int) -> None:
    """Adds the gradient of the tokens, given that of `_means`."""
    whole, rest = divmod(d_x.shape[1], size)
    of_windows = d_x[:, : whole * size].unflatten(1, (whole, size))
    of_windows.add_(gradient[:, :whole, None], alpha=1 / size)
    if rest:
        d_x[:, whole * size :].add_(gradient[:, whole:], alpha=1 / rest)


def _mean_windows(
    tokens: dict[int, Tensor], real: Bool[Tensor, "b k"] | None, layout: _Layout
) -> tuple[Tensor | None, Float[Tensor, "s b d"]]:
    """The mean real window of each size, and the share of real windows, or a positive number without any."""
    b, m, d = tokens[1].shape
    means = tokens[1].new_empty(len(layout.number), b, d)
    for size, number in layout.number.items():
        torch.mean(tokens[size], 1, out=means[number])
    if real is None:
        return None, means
    counts = real.new_empty(*means.shape[:2], dtype=torch.promote_types(means.dtype, torch.float32))
    for size, number in layout.number.items():
        torch.mean(real[:, layout.slots[size]], 1, dtype=counts.dtype, out=counts[number])
    counts = counts.clamp_(min=1 / m)[..., None]
    return counts, means.div_(counts)
