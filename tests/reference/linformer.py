"""Wang et al. 2020, Eq. 7: softmax(Q_i (E_i K_i)ᵀ / √d_h) F_i V_i, where E and F act on projected keys and values."""

import math

import torch
from torch import Tensor, nn


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
    """`longest` is the context length that the layer was built for; `k` is needed for pooling only."""
    maps = attention.projections
    if sharing == "layer" and carry is None and projection not in ("mean", "max"):
        [carry] = attention.key_map
    q, keys, values = (t.chunk(heads, 1) for t in (maps.query(x), maps.key(context), maps.value(context)))
    scale = (x.shape[1] // heads) ** 0.5
    window = math.ceil(longest / k) if k else 0
    parts = []
    for h in range(heads):
        own_k, own_v = matrices(attention, carry, sharing, h)
        compressed_k = compress(keys[h], own_k, projection, window, h)
        compressed_v = compress(values[h], own_v, projection, window, h)
        parts.append((q[h] @ compressed_k.T / scale).softmax(1) @ compressed_v)
    return maps.out(torch.cat(parts, 1)), carry


def matrices(
    attention: nn.Module, carry: Tensor | None, sharing: str, head: int
) -> tuple[Tensor | None, Tensor | None]:
    """E and F of one head; None where pooling needs none."""
    if sharing == "layer":
        return carry, carry
    if not len(attention.key_map):
        return None, None
    e = attention.key_map[head if sharing == "none" and len(attention.key_map) > 1 else 0]
    if sharing == "kv":
        return e, e
    return e, attention.value_map[head if sharing == "none" and len(attention.value_map) > 1 else 0]


def compress(rows: Tensor, matrix: Tensor | None, projection: str, window: int, head: int) -> Tensor:
    """[m, e] to [k, e]."""
    if projection == "linear":
        return matrix[:, : len(rows)] @ rows
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
