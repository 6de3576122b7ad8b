"""Sparse Sinkhorn attention (Tay et al. 2020, https://arxiv.org/abs/2002.11296, Sections 3.1-3.2, Eq. 1-5)."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.blocks import blocks, unblocks
from subquad.ops.masks import zero_padding
from subquad.ops.pooling import mean_pool, window_mask
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, ContextMask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count, Positive


class Sinkhorn(StatelessAttention):
    """y_i = softmax(q_i [K̃_u; K_u]ᵀ / √d_h) [Ṽ_u; V_u] for a query i of block u: its own block and a sorted one.

    K̃_u = Σ_v S_uv K_v and Ṽ_u = Σ_v S_uv V_v mix whole blocks, in each head, by S = Sinkhorn(R / temperature), which
    divides rows by their sums, then columns, `iterations` times (in logarithms). R_uv = q̄_u · k̄_v / √d_h compares the
    mean query of block u with the mean key of block v: a sort network without weights of its own and of any length.

    Padding: means are those of real tokens, and a block without real tokens has no part in S. Padded tokens enter a
    mixed block as zeros, and position t of a mixed block is visible if some block has a real token at position t.

    Args:
        block: tokens of a block; the last block may be shorter.
        iterations: how often rows and columns are normalised.
        temperature: divides R.
        gumbel: add Gumbel noise to R in training.

    Why the fast path is equal: the means are taken of X before it is projected (q̄ = x̄ W + b). Keys and values are mixed
    after the projection, where S of each head multiplies d_h columns only. Keys that occur twice do not change a
    softmax, so S = 1 gives attention within blocks.

    Examples:
        >>> import torch
        >>> from subquad import Sinkhorn
        >>> layer = Sinkhorn(dim=64, heads=4, block=32)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: lucidrains keeps the largest entry of each row of S only and mixes keys in place of values; the
    benchmark code of Long Range Arena sums over blocks and columns of S independently, so that nothing is sorted.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n b d + n²d/b), memory O(n d + (n/b)²) for blocks of b tokens"

    def __init__(
        self, site: Site, block: Count = 64, iterations: Count = 8, temperature: Positive = 0.75, gumbel: bool = False
    ) -> None:
        super().__init__(site)
        self.block, self.iterations, self.temperature, self.gumbel = block, iterations, temperature, gumbel
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, (batch, length, _) = self.projections, x.shape
        sort = self._sort(context, masks.context).transpose(0, 1)
        keys, values = (self._mixed_and_own(linear(context), sort, masks.context) for linear in (p.key, p.value))
        y = softmax_attention(
            p.split(blocks(p.query(x), self.block)),
            keys,
            values,
            attn_mask=self._visible(masks.context, context),
            dropout_p=self._dropout,
        )
        return p.out(unblocks(y.transpose(1, 2).flatten(-2), batch, length))

    def _mixed_and_own(
        self, x: Context, sort: Float[Tensor, "h b k k"], mask: ContextMask
    ) -> list[Float[Tensor, "blocks h w e"]]:
        """Blocks mixed by S and the blocks themselves: heads first, so that a block of a head is one row of numbers."""
        cut = blocks(zero_padding(x, mask), self.block).unflatten(-1, (self.site.heads, -1))
        own = cut.permute(2, 0, 1, 3).contiguous()
        rows = own.unflatten(1, (x.shape[0], -1)).flatten(-2)
        mixed = (sort.to(x.dtype) @ rows).view_as(own)
        return [part.transpose(0, 1) for part in (mixed, own)]

    def _sort(self, context: Context, mask: ContextMask) -> Float[Tensor, "b h k k"]:
        """S, at least in single precision."""
        p = self.projections
        means, real = mean_pool(context, mask, self.block)
        queries, keys = p.split(p.query(means)), p.split(p.key(means))
        logits = queries @ keys.mT / math.sqrt(queries.shape[-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.gumbel and self.training:
            tiny = torch.finfo(logits.dtype).tiny
            logits = logits - torch.empty_like(logits).exponential_().clamp(min=tiny).log()
        return balance(logits / self.temperature, None if mask is None else real, self.iterations)

    def _visible(self, mask: ContextMask, context: Context) -> Bool[Tensor, "blocks 1 1 keys"] | None:
        length = context.shape[1]
        if mask is None and length % self.block == 0:
            return None
        own = window_mask(mask, length, self.block, context.device)
        mixed = own.any(1, keepdim=True).expand_as(own)
        visible = torch.cat([mixed, own], 2).expand(context.shape[0], -1, -1)
        return visible.flatten(0, 1)[:, None, None]


def balance(
    logits: Float[Tensor, "b h k k"], real: Bool[Tensor, "b k"] | None, iterations: int
) -> Float[Tensor, "b h k k"]:
    """exp(logits), rows then columns divided by their sums `iterations` times; 0 in rows and columns not real."""
    empty = None if real is None else ~(real[:, None, :, None] & real[:, None, None])
    for axis in (-1, -2) * iterations:
        if empty is not None:
            # Half of the most negative number: adding finite terms to it cannot overflow.
            logits = logits.masked_fill(empty, torch.finfo(logits.dtype).min / 2)
        # To divide by sums, in logarithms.
        logits = logits.log_softmax(axis)
    s = logits.exp()
    return s if empty is None else s.masked_fill(empty, 0)
