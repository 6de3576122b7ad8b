"""Nguyen et al. 2023, Eq. 43 and 45: softmax attention of queries and keys that each weigh their neighbours."""

import torch
from torch import Tensor, nn


def convolve(x: Tensor, kernel: Tensor, places: list[tuple[int, int]]) -> Tensor:
    """Σ over the taps of one kernel, tokens lying at `places` (row, column); where no token lies is 0."""
    of = {place: i for i, place in enumerate(places)}
    high, wide = kernel.shape
    rows = []
    for row, column in places:
        total = torch.zeros_like(x[0])
        for a in range(high):
            for b in range(wide):
                neighbour = (row + a - high // 2, column + b - wide // 2)
                if neighbour in of:
                    total = total + kernel[a, b] * x[of[neighbour]]
        rows.append(total)
    return torch.stack(rows) if rows else x


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    width: int,
    leading: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """`width`: tokens in a row of the grid; `leading`: tokens ahead of it."""
    maps, heads = attention.projections, len(attention.kernel)
    places = [divmod(i, width) for i in range(len(x) - leading)]
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(x), maps.value(x)))
    parts = []
    for h, kernel in enumerate(attention.kernel):
        query, key = (torch.cat([t[h][:leading], convolve(t[h][leading:], kernel, places)]) for t in (q, k))
        parts.append((query @ key.T / query.shape[1] ** 0.5).softmax(1) @ v[h])
    return maps.out(torch.cat(parts, 1)), carry
