"""PixelFly (Chen et al. 2022, https://arxiv.org/abs/2112.00029, Section 3: flat block butterfly and low rank)."""

import torch
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.block_sparse import attend, block_sparse, flex, runs_flex
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count, Natural


class PixelFly(StatelessAttention):
    """y_i = Σ_{j ∈ S_i} softmax_{j ∈ S_i}(q_iᵀ k_j / √d_h) v_j in each head, S_i by blocks of tokens.

    A query in block a sees block a and the blocks a xor 2^s, s < `factors` (a flat block butterfly of size 2^factors).
    Full rows and columns are the low-rank part. Padded keys are hidden, and so are blocks beyond the end. A block
    counts once.

    Args:
        block: tokens of a block.
        factors: blocks that a block sees besides itself.
        global_blocks: number of first blocks that see all tokens and that all tokens see.

    Examples:
        >>> import torch
        >>> from subquad import PixelFly
        >>> layer = PixelFly(dim=64, heads=4, block=32)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: the pattern is written for linear layers only, with a global size in columns; no attention of the
    paper is public.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n b (log n + g) d), memory O(n (log n + g) d)"

    def __init__(self, site: Site, block: Count = 64, factors: Natural = 4, global_blocks: Natural = 1) -> None:
        super().__init__(site)
        self.block, self.factors, self.global_blocks = block, factors, global_blocks
        self.projections = Projections(site.dim, site.heads)

    def visible(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether the query at a position sees the key at a position."""
        a, b = query // self.block, key // self.block
        apart = a ^ b
        butterfly = ((apart & (apart - 1)) == 0) & (apart < 2**self.factors)
        return butterfly | (a < self.global_blocks) | (b < self.global_blocks)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, heads, mask = self.projections, self.site.heads, masks.context
        q, k, v = p.query(x), p.key(context), p.value(context)
        if runs_flex(q, heads, self._dropout):
            return p.out(flex(q, k, v, mask, lambda _, *places: self.visible(*places), heads, self))
        count = -(-x.shape[1] // self.block)
        own = torch.arange(count, device=x.device)
        # Block a sees a and a with one of its last `factors` bits flipped; repeated numbers are ignored.
        partners = [own ^ 2**s for s in range(self.factors) if 2**s < count]
        everywhere = [torch.full_like(own, i) for i in range(min(self.global_blocks, count))]
        key_blocks = torch.stack([own, *partners, *everywhere], -1)[None, None]
        y = block_sparse(q, k, v, mask, key_blocks, block=self.block, heads=heads, dropout=self._dropout)[
            :, : x.shape[1]
        ]
        if first := self.global_blocks * self.block:
            visible = None if mask is None else mask[:, None, None]
            y = torch.cat([attend(q[:, :first], k, v, visible, heads, self._dropout), y[:, first:]], 1)
        return p.out(y)
