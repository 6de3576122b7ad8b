"""The comparisons of Liu et al. 2022: shared queries and keys whose similarities are products of other features."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reference.ecoformer import hard, unit

Similarity = Callable[[Tensor, int], Tensor]
"""(queries [n, e], head) to the n x n weights of one head before they are divided by their sums."""


def features(attention: nn.Module, q: Tensor) -> Tensor:
    """Positive random features of unit vectors."""
    directions = attention.directions
    return (unit(q) @ directions.T - 0.5).exp() / len(directions) ** 0.5


def compared(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, similarity: Similarity
) -> tuple[Tensor, Tensor | None]:
    """A layer of shared queries and keys with other similarities."""
    q, v = attention.shared(x).chunk(heads, 1), attention.value(x).chunk(heads, 1)
    weights = [similarity(attention, q[head], head) for head in range(heads)]
    parts = [w @ v[head] / w.sum(1, keepdim=True) for head, w in enumerate(weights)]
    return attention.out(torch.cat(parts, 1)), carry


def full_precision(attention: nn.Module, q: Tensor, head: int) -> Tensor:
    phi = features(attention, q)
    return phi @ phi.T


def binary(attention: nn.Module, q: Tensor, head: int) -> Tensor:
    phi = features(attention, q)
    h = hard(phi - phi.mean())
    return h @ h.T + 16  # ten features


def random_hyperplanes(attention: nn.Module, q: Tensor, head: int) -> Tensor:
    h = hard(features(attention, q) @ attention.planes[head].T)
    return h @ h.T + 8  # six bits
