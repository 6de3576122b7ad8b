"""BigBird (Zaheer et al. 2020, https://arxiv.org/abs/2007.14062, Section 2 and Appendix D), internal global blocks."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.block_sparse import attend, block_sparse, flex, runs_flex
from subquad.ops.blocks import blocks
from subquad.specs import Context, ContextMask, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count, Natural


class BigBird(StatelessAttention):
    """y_i = Σ_{j ∈ S_i} softmax_{j ∈ S_i}(q_iᵀ k_j / √d_h) v_j in each head, S_i by blocks of tokens.

    A query in block a sees the blocks a - 1, a, a + 1, the first and the last one, and `random_blocks` others, drawn
    for each head and each a. Queries of the first and the last block see everything. No block counts twice.

    Random blocks are drawn when the layer is built, with the layer's number as the seed, from the blocks of the longest
    input that are not visible otherwise. They are a buffer, the same in training and evaluation. The last block is that
    of a row's last real token, and random blocks after it are hidden, so padding changes nothing.

    Args:
        block: tokens of a block.
        random_blocks: random blocks that a block of queries sees.

    Examples:
        >>> import torch
        >>> from subquad import BigBird
        >>> layer = BigBird(dim=64, heads=4, max_len=512, block=16)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: masks by adding -10⁴, counts a block twice that is random and visible otherwise, and defines the last
    block by the padded length; the one in transformers draws block 0 only in evaluation, and uses full
    attention for short inputs.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n (5 + r) b d), memory O(n (5 + r) d)"
    random: Tensor

    def __init__(self, site: Site, block: Count = 64, random_blocks: Natural = 3) -> None:
        super().__init__(site)
        self.block = block
        self.projections = Projections(site.dim, site.heads)
        self.fix_length("its tables of random blocks")
        self.register_buffer("random", _draw(site, -(-site.context_len // block), random_blocks))

    def visible(self, head: Tensor, query: Tensor, key: Tensor, last: Tensor) -> Tensor:
        """Whether the query at a position sees the key at a position; `last` is the number of the last real block."""
        a, b = query // self.block, key // self.block
        visible = ((a - b).abs() <= 1) | (a == 0) | (b == 0) | (a == last) | (b == last)
        # torch.compile cannot trace a whole number among the indices of a mask of flex attention.
        for chosen in self.random.unbind(-1):
            visible = visible | (chosen[head, a] == b)
        return visible

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, heads, mask = self.projections, self.site.heads, masks.context
        q, k, v = p.query(x), p.key(context), p.value(context)
        last = self._last(context, mask)
        # With padding, rows have different last blocks: a mask of blocks would be built for every batch.
        if mask is None and runs_flex(q, heads, self._dropout):
            final = last[0]
            visible = lambda _, head, i, j: self.visible(head, i, j, final)  # noqa: E731
            return p.out(flex(q, k, v, mask, visible, heads, self, state=self.random))
        # A query may see every block: a mask is cheaper than copies of keys.
        if -(-x.shape[1] // self.block) <= 5 + self.random.shape[-1]:
            return p.out(attend(q, k, v, self._matrix(last, mask, x.shape[1]), heads, self._dropout))
        key_blocks = self._key_blocks(last, x.shape[1])
        y = block_sparse(q, k, v, mask, key_blocks, block=self.block, heads=heads, dropout=self._dropout)
        return p.out(self._with_global_rows(y, q, k, v, mask, last, self._dropout))

    def _last(self, context: Context, mask: ContextMask) -> Int[Tensor, " b"]:
        """The block of each row's last real token."""
        places = torch.arange(context.shape[1], device=context.device).expand(context.shape[:2])
        return (places if mask is None else places * mask).amax(1) // self.block

    def _matrix(self, last: Int[Tensor, " b"], mask: Mask, length: int) -> Bool[Tensor, "c h n n"]:
        """The full mask of visible keys, which is smaller than copies of keys while there are few blocks."""
        heads = torch.arange(self.site.heads, device=last.device)[:, None, None]
        starts = torch.arange(0, length, self.block, device=last.device)
        last = (last if mask is not None else last[:1])[:, None, None, None]
        visible = self.visible(heads, starts[:, None], starts, last)
        visible = visible.repeat_interleave(self.block, -1).repeat_interleave(self.block, -2)[..., :length, :length]
        return visible if mask is None else visible & mask[:, None, None]

    def _key_blocks(self, last: Int[Tensor, " b"], length: int) -> Int[Tensor, "b h a s"]:
        """The key blocks that each block of queries sees; -1 and repeated numbers are ignored."""
        count = -(-length // self.block)
        own = torch.arange(count, device=last.device)
        fixed = torch.stack([torch.zeros_like(own), own - 1, own, own + 1], 1)
        shape = (last.shape[0], self.site.heads, count, -1)
        return torch.cat(
            [
                fixed.expand(shape),
                last[:, None, None, None].expand(*shape[:3], 1),
                self.random[:, :count].expand(shape),
            ],
            -1,
        )

    def _with_global_rows(
        self, y: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, last: Tensor, dropout: float
    ) -> Tokens:
        """Replaces the outputs of the first block and of each row's last block, whose queries see everything."""
        rows = torch.arange(q.shape[0], device=q.device)
        cut = blocks(q, self.block).unflatten(0, (q.shape[0], -1))
        queries = torch.cat([cut[:, 0], cut[rows, last]], 1)
        visible = None if mask is None else mask[:, None, None]
        top, bottom = attend(queries, k, v, visible, self.site.heads, dropout).chunk(2, 1)
        number = torch.arange(cut.shape[1], device=q.device)[:, None, None]
        mixed = torch.where(number == last[:, None, None, None], bottom[:, None], y.unflatten(1, (-1, self.block)))
        return torch.cat([top, mixed[:, 1:].flatten(1, 2)], 1)[:, : q.shape[1]]


def _draw(site: Site, count: int, number: int) -> Int[Tensor, "h a r"]:
    """For each head and block, `number` different blocks that are neither near nor global; -1 if there are too few."""
    own = torch.arange(count)
    free = ((own[:, None] - own).abs() > 1) & (own > 0) & (own < count - 1)
    lots = torch.rand(site.heads, count, count, generator=torch.Generator().manual_seed(site.layer))
    best = lots.masked_fill(~free, -1).topk(min(number, count), -1)
    return best.indices.masked_fill(best.values < 0, -1)
