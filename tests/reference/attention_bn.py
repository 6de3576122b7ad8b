"""Nguyen et al. 2023, Eq. 22-23 and 26: queries and keys both shifted by βμ and divided by s before the softmax."""

import torch
from torch import Tensor, nn


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    beta: float | None = 1.0,
    variance: bool = False,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor | None]:
    """`beta` None: the module's parameter."""
    maps, weight = attention.projections, attention.beta if beta is None else beta
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    parts = []
    for h in range(heads):
        mean = sum(k[h]) / len(k[h])
        s = (sum((key - mean) ** 2 for key in k[h]) / len(k[h]) + eps).sqrt() if variance else 1
        query, key = (q[h] - weight * mean) / s, (k[h] - weight * mean) / s
        parts.append((query @ key.T / key.shape[1] ** 0.5).softmax(1) @ v[h])
    return maps.out(torch.cat(parts, 1)), carry
