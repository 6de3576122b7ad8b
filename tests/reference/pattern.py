"""Softmax attention over the keys that a query sees, spelled with the n x n weights of every head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Sees = Callable[[int, int, int], bool]
"""(head, query, key) to whether the one sees the other."""


def grid(sees: Sees, heads: int, length: int) -> Tensor:
    """[h, n, n]: the pattern as a mask."""
    places = range(length)
    return torch.tensor([[[sees(h, i, j) for j in places] for i in places] for h in range(heads)])


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Multi-head softmax attention of projected rows [n, d] under a mask [h, n, n]."""
    heads = len(seen)
    parts = []
    for a, b, c, mask in zip(q.chunk(heads, 1), k.chunk(heads, 1), v.chunk(heads, 1), seen, strict=True):
        logits = a @ b.T / a.shape[1] ** 0.5
        parts.append(torch.where(mask, logits, -torch.inf).softmax(1) @ c)
    return torch.cat(parts, 1)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, sees: Sees
) -> tuple[Tensor, Tensor | None]:
    """The layer of a mechanism that is a pattern and nothing else."""
    maps = attention.projections
    seen = grid(sees, heads, len(x))
    return maps.out(attend(maps.query(x), maps.key(context), maps.value(context), seen)), carry
