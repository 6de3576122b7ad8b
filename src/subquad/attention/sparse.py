"""Sparse transformer attention (Child et al. 2019, https://arxiv.org/abs/1904.10509, Section 4.2-4.3)."""

from typing import Literal

import torch
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.block_sparse import flex, runs_flex
from subquad.ops.sparse_patterns import check_pattern, sparse_pattern
from subquad.ops.sparse_patterns_on_gpu import fixed
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.devices import eager_on_gpu
from subquad.utils.setting_types import Count


class Sparse(StatelessAttention):
    """y_i = Σ_{j ∈ A1_i ∪ A2_i} softmax(q_iᵀ k_j / √d_h) v_j in each head: both sets in one softmax.

    form "fixed":   A1_i = the block of b tokens that holds i, A2_i = {j : j mod b >= b - c}, the last c of every block
    form "strided": A1_i = {j : |i - j| <= b}, A2_i = {j : (i - j) mod b = 0}

    A key of both sets counts once. Padded keys are hidden. If b is near √n, a query sees O(√n) keys.

    Args:
        form: the sets, "fixed" or "strided".
        block: b, tokens of a block, or the stride.
        summary: c, tokens at the end of each block that all queries see ("fixed").
        causal: keep only j <= i, as in the paper.

    Why the fast path is equal: for "fixed", a few blocks of queries at a time attend to their own keys and the summary
    keys of all blocks. For "strided", tokens of equal remainder are a short sequence of n / b tokens, and one softmax
    takes their logits and those of the window side by side.

    Examples:
        >>> import torch
        >>> from subquad import Sparse
        >>> layer = Sparse(dim=64, heads=4, form="strided")
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: the paper's gives each head or layer one of the sets, or merges them as here, and is causal; Long
    Range Arena's merges them through a dense mask, with b = 50, c = 10 and column 0 of each block as well.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n √n d), memory O(n (d + √n))"

    def __init__(
        self, site: Site, form: Literal["fixed", "strided"] = "fixed", block: Count = 64, summary: Count = 8,
        causal: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(site)
        check_pattern(form, block, summary)
        self.form, self.block, self.summary, self.causal = form, block, summary, causal
        self.projections = Projections(site.dim, site.heads)

    def visible(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether the query at a position sees the key at a position."""
        b = self.block
        if self.form == "fixed":
            visible = (query // b == key // b) | (key % b >= b - self.summary)
        else:
            visible = ((query - key).abs() <= b) | ((query - key) % b == 0)
        return visible & (key <= query) if self.causal else visible

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, heads = self.projections, self.site.heads
        q, k, v = p.query(x), p.key(context), p.value(context)
        if runs_flex(q, heads, self._dropout):
            return p.out(flex(q, k, v, masks.context, lambda _, *places: self.visible(*places), heads, self))
        if eager_on_gpu(q) and self.form == "fixed" and not self.causal:
            bias = None if masks.context is None else torch.log(masks.context, out=q.new_empty(q.shape[:2]))
            kv = torch.cat([k, v], -1)
            del k, v
            return p.out(fixed(q, kv, bias, self.block, self.summary, heads, 1, self._dropout, q.shape[2]))
        y = sparse_pattern(
            q, k, v, masks.context, form=self.form, block=self.block, summary=self.summary, heads=heads,
            causal=self.causal, dropout=self._dropout,
        )  # fmt: skip
        return p.out(y)
