"""Nguyen et al. 2023, Eq. 16: softmax over the allowed keys of an n x m matrix of logits, the others set to -inf."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.scaled_heads import pool


def allowed(n: int, window: int, scale: int) -> Tensor:
    """Which windows of `scale` tokens hold a token within window/2 of a query of the same window as the query."""
    seen = torch.zeros(n, -(-n // scale), dtype=torch.bool)
    for i in range(n):
        start = i // scale * scale
        for other in range(start, start + scale):
            for j in range(n + scale):
                if abs(other - j) <= window / 2 and j // scale < seen.shape[1]:
                    seen[i, j // scale] = True
    return seen


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    scales: Sequence[int],
    window: int,
    beta: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    maps, heads = attention.projections, len(scales)
    parts = []
    for h, scale in enumerate(scales):
        pooled = pool(context, scale)
        q, k, v = (t.chunk(heads, 1)[h] for t in (maps.query(x), maps.key(pooled), maps.value(pooled)))
        mean = beta * k.mean(0)
        logits = (q - mean) @ (k - mean).T / k.shape[1] ** 0.5
        logits = logits.masked_fill(~allowed(len(x), window, scale), -torch.inf)
        parts.append(logits.softmax(1) @ v)
    return maps.out(torch.cat(parts, 1)), carry
