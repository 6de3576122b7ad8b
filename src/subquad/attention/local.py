"""Local attention (Parmar et al. 2018, https://arxiv.org/abs/1802.05751, Section 3.3), in one dimension."""

from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.block_sparse import flex, runs_flex, sliding_window, within_blocks
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Natural


class Local(StatelessAttention):
    """y_i = Σ_{j ∈ S_i} softmax_{j ∈ S_i}(q_iᵀ k_j / √d_h) v_j in each head, S_i the real tokens near i.

    Padded keys are in no S_i. On a CPU, neighbouring queries share one strided window of keys, which is a view. On a
    GPU, flex attention runs the same pattern.

    Args:
        window: tokens of a window or block.
        blockwise: if true, S_i is the block of `window` tokens that holds i; otherwise S_i = {j : |i - j| <= window/2}.

    Examples:
        >>> import torch
        >>> from subquad import Local
        >>> layer = Local(dim=64, heads=4, window=32)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none of the paper in this form; its blocks overlap. Long Range Arena's "local"
    puts the tokens {j, j + n/b, j + 2n/b, …} into one block, which is strided; here a block is a run of neighbours.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n w d), memory O(n (d + w))"

    def __init__(self, site: Site, window: Natural = 256, blockwise: bool = False) -> None:
        super().__init__(site)
        if window < blockwise:
            raise UserError(f"A window of {window} tokens holds none; choose attention.window of at least 1.")
        self.window, self.blockwise = window, blockwise
        self.projections = Projections(site.dim, site.heads)

    def visible(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether the query at a position sees the key at a position."""
        if self.blockwise:
            return query // self.window == key // self.window
        return 2 * (query - key).abs() <= self.window

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, heads = self.projections, self.site.heads
        q, k, v = p.query(x), p.key(context), p.value(context)
        if runs_flex(q, heads, self._dropout):
            return p.out(flex(q, k, v, masks.context, lambda _, *places: self.visible(*places), heads, self))
        if self.blockwise:
            return p.out(within_blocks(q, k, v, masks.context, size=self.window, heads=heads, dropout=self._dropout))
        half = self.window // 2
        return p.out(
            sliding_window(q, k, v, masks.context, heads=heads, before=half, after=half, dropout=self._dropout)
        )
