"""Softmax attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, Eq. 1)."""

import math

from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.dropout import drop
from subquad.ops.masking import masked_softmax
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Masks, Pattern, Site


class Softmax(StatelessAttention):
    """Y = softmax(Q Kᵀ / √d_h) V in each head.

    `fused` runs torch's fused kernel, which never holds the n x m weights. Without it the three products are written
    out as in the paper: the baseline that papers of the field time themselves against.

    Released code: as the paper, written out (`fused=false`).
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n) fused, O(n²) written out"

    def __init__(self, site: Site, fused: bool = True) -> None:
        super().__init__(site)
        self.fused = fused
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
        weights = masked_softmax(q @ k.mT / math.sqrt(q.shape[-1]), keys)
        return p.merge(drop(weights, dropout, self.training) @ v)
