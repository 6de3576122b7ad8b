"""Qin et al. 2022: ReLU similarities times a cosine of the distance, an n x m matrix divided by its row sums."""

import math

import torch
from torch import Tensor, nn


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    longest: int,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor | None]:
    maps = attention.projections
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    i, j = (torch.arange(1, len(t) + 1, dtype=x.dtype) for t in (x, context))
    near = torch.cos(math.pi / 2 * (i[:, None] - j[None, :]) / longest)
    parts = []
    for h in range(heads):
        weights = q[h].relu() @ k[h].relu().T * near
        parts.append(weights / weights.sum(1, keepdim=True).clamp(min=eps) @ v[h])
    return maps.out(torch.cat(parts, 1)), carry
