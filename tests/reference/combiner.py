"""Ren et al. 2021, Eq. 7-10: for each query the tokens it sees and the spans of all others, written out as sets."""

import math

import torch
from torch import Tensor, nn


def spans_of(i: int, length: int, factorization: str, span: int) -> tuple[list[int], list[list[int]]]:
    """Tokens that query i sees one by one, and the spans of all others."""
    if factorization == "fixed":
        parts = [list(range(a, min(a + span, length))) for a in range(0, length, span)]
        return parts[i // span], [part for r, part in enumerate(parts) if r != i // span]
    if factorization == "logn":
        own, parts, size = i // span, [], span
        direct = [j for j in range(length) if j // span == own]
        while size < length:
            parts.append([j for j in range(length) if j // size == i // size ^ 1])
            size *= 2
        return direct, parts
    row, column = divmod(i, span)
    direct = [j for j in range(length) if j // span == row or j % span == column]
    parts = []
    for c in range(span):
        if c != column:
            parts.append([j for j in range(c, length, span) if j // span < row])
            parts.append([j for j in range(c, length, span) if j // span > row])
    return direct, parts


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    factorization: str,
    span: int,
    pooling: str = "max",
    size_offset: bool = False,
) -> tuple[Tensor, Tensor | None]:
    maps, columns = attention.projections, []
    pool = (lambda t: t.amax(0)) if pooling == "max" else (lambda t: t.mean(0))
    heads_of = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    for q, k, v in zip(*heads_of, strict=True):
        scale, rows = q.shape[1] ** 0.5, []
        for i in range(len(q)):
            direct, spans = spans_of(i, len(q), factorization, span)
            spans = [part for part in spans if part]
            assert sorted([*direct, *(j for part in spans for j in part)]) == list(range(len(q)))
            logits, values = [q[i] @ k[j] / scale for j in direct], [v[j] for j in direct]
            for part in spans:
                offset = math.log(len(part)) if size_offset else 0.0
                logits.append(q[i] @ pool(k[part]) / scale + offset)
                values.append((k[part] @ pool(q[part]) / scale).softmax(0) @ v[part])
            rows.append(torch.stack(logits).softmax(0) @ torch.stack(values))
        columns.append(torch.stack(rows))
    return maps.out(torch.cat(columns, 1)), carry
