"""Softmax attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, Eq. 1)."""

import math

import torch

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.dropout import dropout
from subquad.ops.masks import masked_softmax
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count


class Softmax(StatelessAttention):
    """Y = softmax(Q Kᵀ / √d_h) V in each head.

    Args:
        fused: run torch's fused kernel, or on a CPU with few keys the package's own, without the n x m weights. If
            false, the weights are computed as in the paper, which is the baseline that papers compare their speed with.
        heads_at_once: heads whose weights are in memory at a time if not fused; null is all. Fewer save memory.

    Examples:
        >>> import torch
        >>> from subquad import Softmax
        >>> layer = Softmax(dim=64, heads=4)
        >>> mask = torch.arange(300) < torch.tensor([[200], [300]])  # the first of two rows has 200 tokens
        >>> layer(torch.randn(2, 300, 64), mask=mask).shape
        torch.Size([2, 300, 64])
        >>> cross = Softmax(dim=64, heads=4, context_len=100, pattern="cross")
        >>> cross(torch.randn(2, 300, 64), torch.randn(2, 100, 64)).shape
        torch.Size([2, 300, 64])

    Released code: as the paper, written out (`fused=false`).
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n) fused, O(n²) written out"

    def __init__(self, site: Site, fused: bool = True, heads_at_once: Count | None = None) -> None:
        super().__init__(site)
        if heads_at_once is not None and fused:
            raise UserError("Softmax takes attention.heads_at_once only where attention.fused is false.")
        self.fused, self.heads_at_once = fused, heads_at_once or site.heads
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        q, k, v = p.qkv(x, context)
        keys = None if masks.context is None else masks.context[:, None, None, :]
        if self.fused:
            return p.merge(softmax_attention(q, k, v, attn_mask=keys, dropout_p=self._dropout))
        parts = []
        for query, key, value in zip(*(t.split(self.heads_at_once, 1) for t in (q, k, v)), strict=True):
            weights = masked_softmax(query @ key.mT / math.sqrt(q.shape[-1]), keys)
            parts.append(dropout(weights, self._dropout, self.training) @ value)
        return p.merge(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
