"""Softmax attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, Eq. 1)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.dropout import drop
from subquad.ops.masking import masked_softmax
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Masks, Pattern, Site


class Softmax(StatelessAttention):
    """Y = softmax(Q Kᵀ / √d_h) V in each head.

    `fused` runs torch's fused kernel, or ours for few keys on a CPU, and never holds the n x m weights. Without it the
    three products are written out as in the paper: the baseline that papers of the field time themselves against.
    `heads_at_once` heads hold their weights at a time then, all of them by default: long sequences fit in memory with
    fewer.

    Released code: as the paper, written out (`fused=false`).
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n) fused, O(n²) written out"

    def __init__(self, site: Site, fused: bool = True, heads_at_once: int | None = None) -> None:
        super().__init__(site)
        if heads_at_once is not None and (fused or heads_at_once < 1):
            raise UserError("Softmax takes heads_at_once of at least 1, and only where fused is false.")
        self.fused, self.heads_at_once = fused, heads_at_once or site.heads
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        q, k, v = p.qkv(x, context)
        keys = None if masks.context is None else masks.context[:, None, None, :]
        dropout = self.site.dropout if self.training else 0.0
        if self.fused:
            return p.merge(softmax_attention(q, k, v, attn_mask=keys, dropout_p=dropout))
        parts = []
        for query, key, value in zip(*(t.split(self.heads_at_once, 1) for t in (q, k, v)), strict=True):
            weights = masked_softmax(query @ key.mT / math.sqrt(q.shape[-1]), keys)
            parts.append(drop(weights, dropout, self.training) @ value)
        return p.merge(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
