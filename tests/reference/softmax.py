"""Vaswani et al. 2017, Eq. 1: softmax(Q Kᵀ / √d_h) V in each head."""

import torch
from torch import Tensor, nn


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int
) -> tuple[Tensor, Tensor | None]:
    maps = attention.projections
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    scale = (x.shape[1] // heads) ** 0.5
    parts = [(q[h] @ k[h].T / scale).softmax(1) @ v[h] for h in range(heads)]
    return maps.out(torch.cat(parts, 1)), carry
