"""Wu et al. 2022, Section 3.2: flows between all pairs of tokens as an n x m matrix, summed along its two sides."""

import torch
from torch import Tensor, nn


def flows(q: Tensor, k: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities, conserved incoming flow of the queries, conserved outgoing flow of the keys; one head."""
    similarity = q.sigmoid() @ k.sigmoid().T
    incoming, outgoing = similarity.sum(1) + eps, similarity.sum(0) + eps
    return similarity / incoming[:, None], (similarity / outgoing).sum(1), (similarity / incoming[:, None]).sum(0)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, eps: float = 1e-6
) -> tuple[Tensor, Tensor | None]:
    maps, n, m = attention.projections, len(x), len(context)
    q, k, v = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    parts = []
    for h in range(heads):
        weights, conserved_in, conserved_out = flows(q[h], k[h], eps)
        competing = m * conserved_out.softmax(0)[:, None] * v[h]
        parts.append((conserved_in * n / m).sigmoid()[:, None] * (weights @ competing))
    return maps.out(torch.cat(parts, 1)), carry
