"""The released layer of DBA, one sequence at a time: tokens into rows, rows among themselves, rows back into tokens."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def layer(
    attention: nn.Module,
    x: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    drop: Callable[[Tensor], Tensor] = lambda t: t,
) -> tuple[Tensor, Tensor]:
    """`drop` is what dropout does to Z and to weights."""
    m = attention
    z = drop(m.latent) if carry is None else carry
    rows = attend(m.latent_query(z), m.key(x), m.value(x), heads, drop)
    mixed = m.norm(attend(m.row_query(rows), m.row_key(rows), m.row_value(rows), heads, drop))
    parts = zip(m.expand(x).chunk(heads, 1), mixed.chunk(heads, 1), strict=True)
    return m.out(torch.cat([drop(logits.softmax(1)) @ part for logits, part in parts], 1)), rows


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, drop: Callable[[Tensor], Tensor]) -> Tensor:
    """Multi-head softmax attention of projected rows."""
    scale = (q.shape[1] // heads) ** 0.5
    parts = zip(q.chunk(heads, 1), k.chunk(heads, 1), v.chunk(heads, 1), strict=True)
    return torch.cat([drop((a @ b.T / scale).softmax(1)) @ c for a, b, c in parts], 1)
