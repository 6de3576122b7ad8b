"""Sparse Attention-BN, -SH and -BN+SH (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 16)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.scaled_heads import at_scales, mean_keys, scale_groups
from subquad.ops.sparse import sliding_window
from subquad.specs import Masks, Pattern, Site


class SparseBNSH(StatelessAttention):
    """y_i = Σ_{j ∈ M(i)} softmax_j( (q_i − βμ)ᵀ (k_j − βμ) / √d_h ) v_j in each head, M(i) = {j : |i − j| <= window/2}.

    Keys and values are those of the context averaged over windows of s tokens; queries of window a see the windows from
    a − ceil(window/2s) to a + ceil(window/2s): those with a token in the band, if s divides window/2. μ is the mean of
    all keys of the head, inside the band or not.

    beta: weight of the mean; 0 leaves queries and keys where they are.
    scales: s of each head, one number for all heads, or null = by the number of heads: [1,2], [1,1,2,4],
        [1,1,2,2,4,4,8,8] and, for 16 heads, each of these twice.

    A window is averaged over its real tokens and is a key where it has any.

    Exact: queries are taken in blocks with the keys that they reach, and no n x n matrix is formed.

    Released code: none; the paper names no pattern, the band is a choice.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n w d), memory O(n (w + d))"

    def __init__(
        self, site: Site, window: int = 256, beta: float = 1.0, scales: int | Sequence[int] | None = None
    ) -> None:
        super().__init__(site)
        if window < 2 or window % 2:
            raise UserError(f"A window of {window} has no two equal sides; choose an even attention.window from 2.")
        self.groups = scale_groups(scales, site.dim, site.heads)
        self.window, self.beta = window, beta
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        dropout = self.site.dropout if self.training else 0.0
        scaled = at_scales(context, masks.context, self.groups)
        queries = p.query(x)
        if self.beta:
            queries = queries - self.beta * mean_keys(p.key, scaled, self.groups)
        heads = []
        for group in self.groups:
            tokens, real = scaled[group.scale]
            k, v = (group.project(linear, tokens) for linear in (p.key, p.value))
            reach = math.ceil(self.window / 2 / group.scale)
            heads.append(
                sliding_window(
                    queries[..., group.features], k, v, real, heads=group.heads, before=reach, after=reach,
                    stride=group.scale, dropout=dropout,
                )
            )  # fmt: skip
        return p.out(torch.cat(heads, -1))
