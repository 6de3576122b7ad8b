"""Katharopoulos et al. 2020, Eq. 4: similarities φ(q)ᵀφ(k) as an n x m matrix, its rows divided by their sums."""

import torch
from torch import Tensor, nn


def feature(x: Tensor) -> Tensor:
    """elu(x) + 1."""
    return torch.where(x > 0, x + 1, x.exp())


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, eps: float = 1e-6
) -> tuple[Tensor, Tensor | None]:
    maps = attention.projections
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    parts = []
    for h in range(heads):
        similarity = feature(q[h]) @ feature(k[h]).T
        parts.append(similarity / (similarity.sum(1, keepdim=True) + eps) @ v[h])
    return maps.out(torch.cat(parts, 1)), carry
