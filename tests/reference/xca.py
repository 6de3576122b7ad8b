"""El-Nouby et al. 2021, https://arxiv.org/abs/2106.09681, Eq. 1: one head after another."""

import torch
from torch import Tensor, nn


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int
) -> tuple[Tensor, Tensor | None]:
    maps, parts = attention.projections, []
    for h, (q, k, v) in enumerate(
        zip(*(m(x).chunk(heads, 1) for m in (maps.query, maps.key, maps.value)), strict=True)
    ):
        q, k = q / q.norm(dim=0), k / k.norm(dim=0)
        parts.append(v @ (attention.temperature[h] * k.T @ q).softmax(0))
    return maps.out(torch.cat(parts, 1)), carry
