"""Longformer (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, Section 3.1)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.block_sparse import flex, runs_flex, sliding_window
from subquad.ops.heads import split_heads
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, ContextMask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Natural


class Longformer(StatelessAttention):
    """y_i = softmax_j(q_iᵀ k_j / √d_h) v_j over |i - j| <= window / 2 and the first g tokens, in each head;
    y_i = softmax_j(q^g_iᵀ k^g_j / √d_h) v^g_j over all tokens where i is one of the first g = `global_tokens`.

    q^g, k^g, v^g have maps of their own; other queries see the global tokens through the ordinary maps. Padded keys are
    hidden.

    Args:
        window: w, tokens that a query sees, half on each side.
        global_tokens: g, number of first tokens that see all tokens and that all tokens see.

    Why the fast path is equal: global queries do not form k^g and v^g of all tokens: q^gᵀ (W_k x_j) = (W_kᵀ q^g)ᵀ x_j
    is a product with the tokens themselves, and the weighted mean of tokens is projected afterwards. k^g has no bias,
    because it would shift all logits of a query alike.

    Examples:
        >>> import torch
        >>> from subquad import Longformer
        >>> layer = Longformer(dim=64, heads=4, window=32, global_tokens=2)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: has that bias; multiplies q by 1/√d_h first; needs an even window and lengths that are multiples of
    it. Long Range Arena's has no global tokens and leaves the second maps unused (`global_tokens=0` here).
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n (w + g) d), memory O(n (d + w + g))"

    def __init__(self, site: Site, window: Natural = 512, global_tokens: Natural = 1) -> None:
        super().__init__(site)
        self.window, self.global_tokens = window, global_tokens
        self.projections = Projections(site.dim, site.heads)
        if global_tokens:
            self.global_query, self.global_value = (nn.Linear(site.dim, site.dim) for _ in range(2))
            self.global_key = nn.Linear(site.dim, site.dim, bias=False)

    def visible(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether the query at a position sees the key at a position."""
        near = 2 * (query - key).abs() <= self.window
        return near | (query < self.global_tokens) | (key < self.global_tokens)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, heads, mask = self.projections, self.site.heads, masks.context
        q, k, v = p.query(x), p.key(context), p.value(context)
        dropout, half = self._dropout, self.window // 2
        first = min(self.global_tokens, x.shape[1])
        if runs_flex(q, heads, dropout):
            y = flex(q, k, v, mask, lambda _, *places: self.visible(*places), heads, self)
        else:
            y = sliding_window(q, k, v, mask, heads=heads, before=half, after=half, first=first, dropout=dropout)
        if first:
            y = torch.cat([self._global(x[:, :first], context, mask, dropout), y[:, first:]], 1)
        return p.out(y)

    def _global(
        self, x: Float[Tensor, "b g d"], context: Context, mask: ContextMask, dropout: float
    ) -> Float[Tensor, "b g d"]:
        heads = self.site.heads
        key, value = (linear.weight.unflatten(0, (heads, -1)) for linear in (self.global_key, self.global_value))
        q = split_heads(self.global_query(x), heads) / math.sqrt(key.shape[1])
        tokens, visible = context[:, None], None if mask is None else mask[:, None, None]
        means = softmax_attention(
            (q @ key).flatten(1, 2)[:, None], tokens, tokens, attn_mask=visible, dropout_p=dropout, scale=1.0
        )
        y = means[:, 0].unflatten(1, (heads, -1)) @ value.mT
        return y.transpose(1, 2).flatten(2) + self.global_value.bias
