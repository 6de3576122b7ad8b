"""Sparse Attention-BN, -SH and -BN+SH (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 16)."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.block_sparse import sliding_window
from subquad.ops.linear_attention_on_gpu import weights_of
from subquad.ops.scaled_heads import ScaleGroup, at_scales, mean_keys, scale_groups
from subquad.ops.scaled_heads_on_gpu import Operands, attend_by_scale
from subquad.ops.sparse_patterns import check_pattern, sparse_pattern
from subquad.ops.sparse_patterns_on_gpu import fixed
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.devices import eager_on_gpu
from subquad.utils.setting_types import Count, Even


def naive_sparse_bn_sh(
    q: Float[Tensor, "n e"], context: Float[Tensor, "m d"], key: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor], visible: Bool[Tensor, "n k"], scale: int, beta: float | Tensor = 1.0,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head for one sequence without padding; `key` and `value` are the head's linear maps.

    visible: M of Eq. 16, which windows of `scale` tokens each query sees.
    """
    pooled = torch.stack([window.mean(0) for window in context.split(scale)])  # Remark 5: downsample, then project
    k, v = key(pooled), value(pooled)
    mean = beta * k.mean(0)  # Eq. 50, over all keys
    logits = (q - mean) @ (k - mean).T / math.sqrt(q.shape[1])  # Eq. 51
    return logits.masked_fill(~visible, -math.inf).softmax(1) @ v  # Eq. 16


class SparseBNSH(StatelessAttention):
    """y_i = Σ_{j ∈ M(i)} softmax_j( (q_i - βμ)ᵀ (k_j - βμ) / √d_h ) v_j in each head.

    M(i) is the set of tokens that query i sees:
        form "fixed":   the block of `block` tokens that holds i, and the last `summary` tokens of every block
        form "strided": the tokens j with |i - j| <= block or (i - j) mod block = 0
        form "band":    the tokens j with |i - j| <= window / 2

    Keys and values are those of the context averaged over windows of s tokens. The pattern then applies to windows: a
    query sees the windows that its own window sees, with blocks of ⌈block/s⌉ and ⌈summary/s⌉ summaries, or a band of
    ⌈window/2s⌉ on each side. Where s divides `block` or window / 2, these are the windows that hold a visible token of
    one of the queries. μ is the mean of all keys of the head, visible or not. A window is averaged over its real
    tokens; windows without real tokens are no keys.

    Args:
        form: pattern of visible tokens: "fixed", "strided" or "band".
        block: tokens of a block ("fixed", "strided"); near √n a query sees O(√n) keys.
        summary: tokens at the end of each block that all queries see ("fixed").
        window: tokens that a query sees, half on each side; even ("band").
        beta: weight β of the mean; 0 does not shift queries and keys.
        learned: make β a parameter that starts at `beta`.
        scales: window s of each head, one number for all heads, or null to choose by the number of heads: [1,2],
            [1,1,2,4], [1,1,2,2,4,4,8,8] and, for 16 heads, four each of 1, 2, 4 and 8.

    Why the fast path is equal: blocks of queries meet exactly the keys that they reach, so no n x n matrix is formed.
    The keys are not shifted, which the softmax would cancel.

    Examples:
        >>> import torch
        >>> from subquad import SparseBNSH
        >>> layer = SparseBNSH(dim=64, heads=4, block=32, learned=True)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none; the paper cites Child et al. 2019 and does not say which of its patterns it takes.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n √n d), memory O(n (d + √n))"

    def __init__(
        self, site: Site, form: Literal["fixed", "strided", "band"] = "fixed", block: Count = 64, summary: Count = 8,
        window: Even = 256, beta: float = 1.0, learned: bool = False, scales: Count | Sequence[Count] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(site)
        if form == "band":
            self.complexity = "time O(n w d), memory O(n (w + d))"
        else:
            check_pattern(form, block, summary)
        self.form, self.block, self.summary, self.window = form, block, summary, window
        self.groups = scale_groups(scales, site.dim, site.heads)
        self.beta = nn.Parameter(torch.tensor([float(beta)])) if learned else beta
        self.recentred = learned or beta != 0
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        if eager_on_gpu(x) and x.shape[2] == self.site.dim:
            weights, beta = weights_of(p.query, p.key, p.value, p.out), self.beta if self.recentred else None
            return attend_by_scale(x, context, masks.context, weights, self.groups, beta, self._attend_on_gpu)
        scaled = at_scales(context, masks.context, self.groups)
        queries = p.query(x)
        if self.recentred:
            queries = queries - self.beta * mean_keys(p.key, scaled, self.groups)
        heads = []
        for group in self.groups:
            tokens, real = scaled[group.scale]
            k, v = (group.project(linear, tokens) for linear in (p.key, p.value))
            heads.append(self._attend_group(group, queries[..., group.features], k, v, real))
        return p.out(torch.cat(heads, -1))

    def _attend_on_gpu(self, group: ScaleGroup, part: Operands) -> Tensor:
        if self.form != "fixed":
            k, v = part.kv.chunk(2, -1)
            return self._attend_group(group, part.q, k, v, part.real)
        block, summary = (math.ceil(size / group.scale) for size in (self.block, self.summary))
        return fixed(part.q, part.kv, part.bias, block, summary, group.heads, group.scale, self._dropout, self.site.dim)

    def _attend_group(self, group: ScaleGroup, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """Softmax attention of the heads of one scale over the visible windows."""
        if self.form == "band":
            reach = math.ceil(self.window / 2 / group.scale)
            return sliding_window(
                q, k, v, real, heads=group.heads, before=reach, after=reach, stride=group.scale, dropout=self._dropout
            )
        return sparse_pattern(
            q, k, v, real, form=self.form, block=self.block, summary=self.summary, heads=group.heads,
            stride=group.scale, dropout=self._dropout,
        )  # fmt: skip
