"""Tay et al. 2021, Section 3.1: logits as n x m matrices, added up, and their softmax."""

import torch
from torch import Tensor, nn


def logits(attention: nn.Module, part: str, x: Tensor, context: Tensor, h: int, heads: int) -> Tensor:
    """One part's logits in head h."""
    n, m = len(x), len(context)
    if part == "dot":
        q, k = attention.query(x).chunk(heads, 1)[h], attention.key(context).chunk(heads, 1)[h]
        return q @ k.T / q.shape[1] ** 0.5
    if part == "dense":
        hidden = attention.hidden(x).relu().chunk(heads, 1)[h]
        return (hidden @ attention.columns[h].T + attention.column_bias[h])[:, :m]
    if part == "factorized_dense":
        hidden = attention.factor_hidden(x).relu().chunk(heads, 1)[h]
        short = hidden @ attention.factor_columns[h].T + attention.factor_bias[h]
        of_a, of_b = attention.factors
        a, b = short[:, :of_a], short[:, of_a:]
        return torch.stack([a[:, j // of_b] * b[:, j % of_b] for j in range(m)], 1)
    if part == "factorized_random":
        return (attention.rows[h] @ attention.row_keys[h].T)[:n, :m]
    return getattr(attention, part)[h, :n, :m]


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, parts: list[str], heads: int
) -> tuple[Tensor, Tensor | None]:
    read = []
    for h, v in enumerate(attention.value(context).chunk(heads, 1)):
        total = sum(logits(attention, part, x, context, h, heads) for part in parts)
        read.append(total.softmax(1) @ v)
    return attention.out(torch.cat(read, 1)), carry
