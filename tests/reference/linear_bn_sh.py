"""Nguyen et al. 2023 on linear attention: the matrix of similarities of centred queries and keys, rows divided."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.linear import feature
from reference.scaled_heads import pool


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    scales: Sequence[int],
    beta: float | None = 1.0,
    eps: float = 1e-6,
    centred_keys: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """`beta` None: the module's parameter. `centred_keys` false: only the queries are shifted."""
    maps, heads, beta = attention.projections, len(scales), attention.beta if beta is None else beta
    parts = []
    for h, scale in enumerate(scales):
        pooled = pool(context, scale)
        q, k, v = (t.chunk(heads, 1)[h] for t in (maps.query(x), maps.key(pooled), maps.value(pooled)))
        mean = beta * k.mean(0)
        similarity = feature(q - mean) @ feature(k - mean if centred_keys else k).T
        parts.append(similarity / (similarity.sum(1, keepdim=True) + eps) @ v)
    return maps.out(torch.cat(parts, 1)), carry
