"""Afzal et al. 2025, https://arxiv.org/abs/2502.16249, Section 3: the n x n matrix of decays, one product at a time."""

import torch
from torch import Tensor, nn


def decays(gates: Tensor) -> Tensor:
    """M of one head, from λ of each token."""
    n = len(gates)
    rows = [[gates[j:i].prod() if j <= i else gates[i + 1 : j + 1].prod() for j in range(n)] for i in range(n)]
    return torch.stack([torch.stack(row) for row in rows])


def feature(x: Tensor, decay: str) -> Tensor:
    if decay == "none":
        return torch.where(x > 0, x + 1, x.exp())
    shifted = x * x.sigmoid() + 0.5
    return shifted / shifted.norm(dim=1, keepdim=True)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int
) -> tuple[Tensor, Tensor | None]:
    maps, decay, parts = attention.projections, attention.decay, []
    for h, (q, k, v) in enumerate(
        zip(*(m(x).chunk(heads, 1) for m in (maps.query, maps.key, maps.value)), strict=True)
    ):
        gates = x.new_ones(len(x))
        if decay == "fixed":
            gates = attention.rate[h].sigmoid().expand(len(x))
        elif decay == "selective":
            gates = 1 - attention.gate(x)[:, h].sigmoid()
        weights = decays(gates) * (feature(q, decay) @ feature(k, decay).T)
        parts.append(weights @ v / (weights.sum(1, keepdim=True) + attention.eps))
    return maps.out(torch.cat(parts, 1)), carry
