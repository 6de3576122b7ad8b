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


def read(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Softmax attention of one query in each head."""
    parts = zip(query.chunk(heads), keys.chunk(heads, 1), values.chunk(heads, 1), strict=True)
    return torch.cat([(b @ a / len(a) ** 0.5).softmax(0) @ c for a, b, c in parts])


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
    class_token: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`class_token`: the first token is one, which all tokens see and which reads itself and what they have read."""
    maps = attention.projections
    token, x, context = (x[:1], x[1:], context[1:]) if class_token else (x[:0], x, context)
    length = len(x)
    k, v = (norm(linear(context), attention.norm_tokens) for linear in (maps.key, maps.value))
    extra_k, extra_v = k[:0], v[:0]
    if rank:
        source = context if scores == "input" else maps.key(context)
        extra_k, extra_v = (
            norm(torch.cat([linear(token), summaries(attention, t, source, heads)]), attention.norm_slots)
            for linear, t in ((maps.key, k), (maps.value, v))
        )
    side, rows = max(window // 2, 1), []
    for i, query in enumerate(maps.query(x)):
        first = i // window * window
        seen = slice(max(first - side, 0), first + window + side)
        keys, values = torch.cat([extra_k, k[seen]]), torch.cat([extra_v, v[seen]])
        rows.append(read(query, keys, values, heads))
    y = torch.stack(rows) if rows else v[:0]
    own = [read(maps.query(c), *(torch.cat([m(c)[None], y]) for m in (maps.key, maps.value)), heads) for c in token]
    if attention.filters is not None:
        taps = attention.filters.repeat_interleave(v.shape[1] // heads, 0)
        half = taps.shape[1] // 2
        for i in range(length):
            for t in range(taps.shape[1]):
                if 0 <= i + t - half < length:
                    y[i] = y[i] + taps[:, t] * v[i + t - half]
    return maps.out(torch.cat([*(c[None] for c in own), y])), carry
