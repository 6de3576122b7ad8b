"""Nguyen et al. 2023, Eq. 25 and 51: each head with keys and values of its own pooled input, centred on both sides."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.scaled_heads import pool


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    scales: Sequence[int],
    beta: float | None = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """`beta` None: the module's parameter."""
    maps, heads, beta = attention.projections, len(scales), attention.beta if beta is None else beta
    parts = []
    for h, scale in enumerate(scales):
        pooled = pool(context, scale)
        q, k, v = (t.chunk(heads, 1)[h] for t in (maps.query(x), maps.key(pooled), maps.value(pooled)))
        mean = k.mean(0)
        weights = ((q - beta * mean) @ (k - beta * mean).T / k.shape[1] ** 0.5).softmax(1)
        parts.append(weights @ v)
    return maps.out(torch.cat(parts, 1)), carry
