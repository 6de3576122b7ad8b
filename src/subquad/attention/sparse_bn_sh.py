"""Sparse Attention-BN, -SH and -BN+SH (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 16)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.scaled_heads import ScaleGroup, at_scales, mean_keys, scale_groups
from subquad.ops.sparse import sliding_window
from subquad.ops.sparse_patterns import check_pattern, sparse_pattern
from subquad.specs import Masks, Pattern, Site


class SparseBNSH(StatelessAttention):
    """y_i = Σ_{j ∈ M(i)} softmax_j( (q_i − βμ)ᵀ (k_j − βμ) / √d_h ) v_j in each head. Of the tokens, M(i) holds

    form "fixed":   the block of `block` tokens that holds i, and the last `summary` tokens of every block;
    form "strided": the tokens j with |i − j| <= block or (i − j) mod block = 0;
    form "band":    the tokens j with |i − j| <= window/2.

    Keys and values are those of the context averaged over windows of s tokens; a query sees the windows that its own
    window sees, where the pattern is that of the windows: blocks of ⌈block/s⌉ with ⌈summary/s⌉ summaries, or a band of
    ⌈window/2s⌉ on each side. Where s divides block, or window/2, these are the windows that hold a token which the
    pattern shows to one of the queries. μ is the mean of all keys of the head, inside the pattern or not.

    beta: weight of the mean; 0 leaves queries and keys where they are.
    learned: β is a parameter that starts at `beta`.
    scales: s of each head, one number for all heads, or null = by the number of heads: [1,2], [1,1,2,4],
        [1,1,2,2,4,4,8,8] and, for 16 heads, each of these twice.

    A window is averaged over its real tokens and is a key where it has any.

    Exact: queries are taken in blocks with the keys that they reach, and no n x n matrix is formed. With blocks near √n
    a query sees O(√n) keys.

    Released code: none; the paper cites Child et al. 2019 and does not say which of its patterns it takes.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n √n d), memory O(n (d + √n))"

    def __init__(
        self,
        site: Site,
        form: str = "fixed",
        block: int = 64,
        summary: int = 8,
        window: int = 256,
        beta: float = 1.0,
        learned: bool = False,
        scales: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__(site)
        if form not in ("fixed", "strided", "band"):
            raise UserError(f"Sparse attention has no form {form!r}; choose attention.form=fixed, strided or band.")
        if form == "band":
            if window < 2 or window % 2:
                raise UserError(f"A window of {window} has no two equal sides; choose an even attention.window from 2.")
            self.complexity = "time O(n w d), memory O(n (w + d))"
        else:
            check_pattern(form, block, summary)
        self.form, self.block, self.summary, self.window = form, block, summary, window
        self.groups = scale_groups(scales, site.dim, site.heads)
        self.beta = nn.Parameter(torch.tensor([float(beta)])) if learned else beta
        self.recentred = learned or beta != 0
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        scaled = at_scales(context, masks.context, self.groups)
        queries = p.query(x)
        if self.recentred:
            queries = queries - self.beta * mean_keys(p.key, scaled, self.groups)
        heads = []
        for group in self.groups:
            tokens, real = scaled[group.scale]
            k, v = (group.project(linear, tokens) for linear in (p.key, p.value))
            heads.append(self._read(group, queries[..., group.features], k, v, real))
        return p.out(torch.cat(heads, -1))

    def _read(self, group: ScaleGroup, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """Softmax attention of a group of heads over what the pattern shows."""
        dropout = self.site.dropout if self.training else 0.0
        if self.form == "band":
            reach = math.ceil(self.window / 2 / group.scale)
            return sliding_window(
                q, k, v, real, heads=group.heads, before=reach, after=reach, stride=group.scale, dropout=dropout
            )
        return sparse_pattern(
            q, k, v, real, form=self.form, block=self.block, summary=self.summary, heads=group.heads,
            stride=group.scale, dropout=dropout,
        )  # fmt: skip
