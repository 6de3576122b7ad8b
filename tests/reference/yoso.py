"""Zeng et al. 2021: the n x m matrix of weights, or of shares of hashes that agree; gradients by the lower bound."""

import math

import torch
from torch import Tensor, nn


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1; rows of zeros stay."""
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)


def expected(q: Tensor, k: Tensor, bits: int) -> Tensor:
    """(1 - angle / π)^bits."""
    return (1 - (q @ k.T).clamp(-1, 1).acos() / math.pi) ** bits


def shared(q: Tensor, k: Tensor, planes: Tensor) -> Tensor:
    """The share of hashes in which all bits of query and key agree; planes: e x hashes x bits."""
    agreeing = [((q @ normals > 0)[:, None] == (k @ normals > 0)[None]).all(2) for normals in planes.unbind(1)]
    return torch.stack(agreeing).double().mean(0)


def with_surrogate(weights: Tensor, q: Tensor, k: Tensor, bits: int) -> Tensor:
    """The weights, whose derivative by q·k is bits / 2 times the weight."""
    weights, similarity = weights.detach(), q @ k.T
    return weights + bits / 2 * weights * (similarity - similarity.detach())


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, bits: int, sampled: bool
) -> tuple[Tensor, Tensor | None]:
    maps = attention.projections
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    parts = []
    for h in range(heads):
        a, b = unit(q[h]), unit(k[h])
        weights = shared(a, b, attention.planes[h]) if sampled else expected(a, b, bits)
        # The second term of the weights is 0, so that values get the gradient of the first alone.
        parts.append(unit(with_surrogate(weights, a, b, bits) @ v[h]))
    return maps.out(torch.cat(parts, 1)), carry
