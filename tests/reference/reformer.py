"""Kitaev et al. 2020, Section 2: one softmax over all that a token meets in any round, as an n x n matrix."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def meetings(codes: Tensor, chunk: int, across_buckets: bool) -> Tensor:
    """Whether i sees j in one round: j is of i's bucket, and in i's chunk of the sorted tokens or the one before it."""
    n = len(codes)
    order = sorted(range(n), key=lambda i: (int(codes[i]), i))
    chunk_of = {token: place // chunk for place, token in enumerate(order)}
    seen = torch.zeros(n, n)
    for i in range(n):
        for j in range(n):
            near = chunk_of[i] - chunk_of[j] in (0, 1)
            seen[i, j] = near and (across_buckets or bool(codes[i] == codes[j]))
    return seen


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    chunk: int,
    across_buckets: bool = False,
    duplicates: bool = False,
    scaled: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """What is met in several rounds counts once, or with `duplicates` in each of them."""
    parts = []
    for h, both in enumerate(attention.query_value(x).chunk(heads, 1)):
        q, v = both.chunk(2, 1)
        total = torch.zeros(len(x), len(x), dtype=x.dtype)
        for rotation in attention.rotations[h].unbind(1):
            rotated = q @ rotation
            total += meetings(torch.cat([rotated, -rotated], 1).argmax(1), chunk, across_buckets)
        logits = q @ F.normalize(q, dim=1).T / (q.shape[1] ** 0.5 if scaled else 1)
        logits = logits - 1e5 * torch.eye(len(x), dtype=x.dtype)
        weight = total if duplicates else (total > 0).to(x.dtype)
        parts.append((logits + weight.log()).softmax(1) @ v)
    return attention.out(torch.cat(parts, 1)), carry
