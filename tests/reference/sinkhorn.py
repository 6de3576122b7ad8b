"""Tay et al. 2020, Eq. 1-5: blocks of tokens, scores of their means, Sinkhorn's rows and columns, one softmax."""

import torch
from torch import Tensor, nn


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """Rows, then columns of exp(scores), divided by their sums."""
    s = scores.exp()
    for _ in range(iterations):
        s = s / s.sum(1, keepdim=True)
        s = s / s.sum(0, keepdim=True)
    return s


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    block: int,
    iterations: int = 8,
    temperature: float = 0.75,
) -> tuple[Tensor, Tensor | None]:
    maps, parts = attention.projections, []
    heads_of = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    for q, k, v in zip(*heads_of, strict=True):
        of_q, of_k, of_v = q.split(block), k.split(block), v.split(block)
        scale = q.shape[1] ** 0.5
        scores = torch.stack([torch.stack([a.mean(0) @ c.mean(0) / scale for c in of_k]) for a in of_q])
        s = sinkhorn(scores / temperature, iterations)
        longest = min(block, len(x))
        rows = []
        for u, queries in enumerate(of_q):
            keys, values = (
                torch.stack([sum(s[u, w] * c[t] for w, c in enumerate(cut) if t < len(c)) for t in range(longest)])
                for cut in (of_k, of_v)
            )
            weights = (queries @ torch.cat([keys, of_k[u]]).T / scale).softmax(1)
            rows.append(weights @ torch.cat([values, of_v[u]]))
        parts.append(torch.cat(rows))
    return maps.out(torch.cat(parts, 1)), carry
