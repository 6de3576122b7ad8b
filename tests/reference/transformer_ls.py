"""Zhu et al. 2021, Sections 3.1-3.3, token by token: the segment and its sides, the summaries, one softmax."""

import torch
from torch import Tensor, nn


def norm(x: Tensor, module: nn.LayerNorm) -> Tensor:
    """LayerNorm over the last axis."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias


def summaries(attention: nn.Module, x: Tensor, scores: Tensor, heads: int) -> Tensor:
    """K̄ or V̄ of all heads before their norm; x are normalised keys or values."""
    p = (scores @ attention.compress.weight.T).softmax(0).chunk(heads, 1)
    return torch.cat([a.T @ part for a, part in zip(p, x.chunk(heads, 1), strict=True)], 1)


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    window: int,
    rank: int,
    scores: str = "input",
) -> tuple[Tensor, Tensor | None]:
    maps, length = attention.projections, len(x)
    k, v = (norm(linear(context), attention.norm_tokens) for linear in (maps.key, maps.value))
    extra_k, extra_v = k[:0], v[:0]
    if rank:
        source = context if scores == "input" else maps.key(context)
        extra_k, extra_v = (norm(summaries(attention, t, source, heads), attention.norm_slots) for t in (k, v))
    side, rows = max(window // 2, 1), []
    for i, query in enumerate(maps.query(x)):
        first = i // window * window
        seen = slice(max(first - side, 0), first + window + side)
        keys, values = torch.cat([extra_k, k[seen]]), torch.cat([extra_v, v[seen]])
        parts = zip(query.chunk(heads), keys.chunk(heads, 1), values.chunk(heads, 1), strict=True)
        rows.append(torch.cat([(b @ a / len(a) ** 0.5).softmax(0) @ c for a, b, c in parts]))
    y = torch.stack(rows)
    if attention.filters is not None:
        taps = attention.filters.repeat_interleave(v.shape[1] // heads, 0)
        half = taps.shape[1] // 2
        for i in range(length):
            for t in range(taps.shape[1]):
                if 0 <= i + t - half < length:
                    y[i] = y[i] + taps[:, t] * v[i + t - half]
    return maps.out(y), carry
