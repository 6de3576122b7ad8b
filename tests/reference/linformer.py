"""Linformer with each way of sharing and compressing (Section 4) around Eq. 7 of attention/linformer.py."""

import math

import torch
from torch import Tensor, nn

from subquad.attention.linformer import naive_linformer


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    longest: int,
    k: int = 0,
    sharing: str = "headwise",
    projection: str = "linear",
) -> tuple[Tensor, Tensor | None]:
    """`longest` is the context length that the layer was built for; `k` is needed for pooling and convolution only."""
    maps = attention.projections
    if sharing == "layer" and carry is None and projection not in ("mean", "max"):
        [carry] = attention.key_map
    q, keys, values = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    window = math.ceil(longest / k) if k else 0
    parts = []
    for h in range(heads):
        own_k, own_v = matrices(attention, carry, sharing, h)
        if projection == "linear":
            e, f = (matrix[:, : len(context)] for matrix in (own_k, own_v))
            parts.append(naive_linformer(q[h], keys[h], values[h], e, f))
        else:
            k_slots = compress(keys[h], own_k, projection, window, h)
            v_slots = compress(values[h], own_v, projection, window, h)
            slots = torch.eye(len(k_slots), dtype=x.dtype)
            parts.append(naive_linformer(q[h], k_slots, v_slots, slots, slots))
    return maps.out(torch.cat(parts, 1)), carry


def matrices(
    attention: nn.Module, carry: Tensor | None, sharing: str, head: int
) -> tuple[Tensor | None, Tensor | None]:
    """E and F of one head, or the kernels of the convolution; None for pooling."""
    if sharing == "layer":
        return carry, carry
    if not len(attention.key_map):
        return None, None
    e = attention.key_map[head if sharing == "none" and len(attention.key_map) > 1 else 0]
    if sharing == "kv":
        return e, e
    return e, attention.value_map[head if sharing == "none" and len(attention.value_map) > 1 else 0]


def compress(rows: Tensor, matrix: Tensor | None, projection: str, window: int, head: int) -> Tensor:
    """Pools [m, e] to [k, e], or convolves it with a stride."""
    slots = []
    for cut in rows.split(window):
        if projection == "mean":
            slots.append(cut.mean(0))
        elif projection == "max":
            slots.append(cut.max(0).values)
        else:
            width = rows.shape[1]
            kernel = matrix[head * width : (head + 1) * width]
            slots.append(sum(kernel[:, place] * cut[place] for place in range(len(cut))))
    return torch.stack(slots)
