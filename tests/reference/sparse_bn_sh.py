"""Nguyen et al. 2023, Eq. 16: softmax over the allowed keys of an n x m matrix of logits, the others set to -inf."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference import sparse
from reference.scaled_heads import pool


def allowed(n: int, scale: int, form: str, block: int = 0, summary: int = 0, window: int = 0) -> Tensor:
    """[n, m]: which windows of `scale` tokens a query sees, those that its own window sees in their pattern."""
    i, j = (torch.arange(-(-n // scale)).view(shape) for shape in ((-1, 1), (1, -1)))
    if form == "band":
        seen = (i - j).abs() <= math.ceil(window / 2 / scale)
    else:
        seen = sparse.sees(0, i, j, form, math.ceil(block / scale), math.ceil(summary / scale))
    return seen.repeat_interleave(scale, 0)[:n]


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    scales: Sequence[int],
    beta: float | None = 1.0,
    **sizes,
) -> tuple[Tensor, Tensor | None]:
    """`beta` None: the module's parameter. `sizes`: those of the pattern."""
    maps, heads, beta = attention.projections, len(scales), attention.beta if beta is None else beta
    parts = []
    for h, scale in enumerate(scales):
        pooled = pool(context, scale)
        q, k, v = (t.chunk(heads, 1)[h] for t in (maps.query(x), maps.key(pooled), maps.value(pooled)))
        mean = beta * k.mean(0)
        logits = (q - mean) @ (k - mean).T / k.shape[1] ** 0.5
        logits = logits.masked_fill(~allowed(len(x), scale, **sizes), -torch.inf)
        parts.append(logits.softmax(1) @ v)
    return maps.out(torch.cat(parts, 1)), carry
