"""Softmax attention of given queries, keys and values, with dropout that costs no more than the products.

torch's fused kernels drop weights on a GPU only. On a CPU its `scaled_dot_product_attention` with dropout writes the
weights out, draws a number of full precision for each of them and looks through all of them for rows without keys.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from subquad.kernels.short_attention import short_attention, takes
from subquad.ops.dropout import drop
from subquad.ops.masking import masked_softmax

Parts = Tensor | Sequence[Tensor]


def softmax_attention(
    q: Tensor, k: Parts, v: Parts, attn_mask: Tensor | None = None, dropout_p: float = 0.0, scale: float | None = None
) -> Tensor:
    """Y = dropout(softmax(scale · Q Kᵀ)) V, as `F.scaled_dot_product_attention` with the same arguments.

    q: [..., n, e], k: [..., m, e], v: [..., m, c], where k and v may also be two parts along m, to be read where they
    lie; attn_mask: True at the keys that a query sees, or what is added to the logits; scale: 1/√e by default. Queries
    that see no key get zeros. Where nothing is dropped, and on a GPU, it is torch's fused kernel, or ours for few keys
    on a CPU.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    keys, values = ((x,) if isinstance(x, Tensor) else x for x in (k, v))
    if dropout_p == 0 and takes(q, keys, values, attn_mask):
        return short_attention(q, keys, values, attn_mask, scale)
    k, v = (x[0] if len(x) == 1 else torch.cat(tuple(x), -2) for x in (keys, values))
    plain = q.dtype in (torch.float32, torch.float64) and (attn_mask is None or attn_mask.dtype == torch.bool)
    if dropout_p == 0 or q.device.type != "cpu" or not plain or torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, scale=scale)
    logits = (q * scale) @ k.mT
    if attn_mask is None:
        weights = logits.softmax(-1)
    elif attn_mask.shape[-2] == 1:  # padding: one row for all queries
        logits += torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, torch.finfo(q.dtype).min / 2)
        weights, v = logits.softmax(-1), v.masked_fill(~attn_mask.mT, 0)
    else:
        weights = masked_softmax(logits, attn_mask)
    return drop(weights, dropout_p, training=True) @ v
