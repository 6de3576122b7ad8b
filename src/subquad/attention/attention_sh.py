"""Attention-SH and Attention-BN+SH (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 25 and 46-51)."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.linear_attention_on_gpu import weights_of
from subquad.ops.scaled_heads import ScaleGroup, at_scales, mean_keys, scale_groups
from subquad.ops.scaled_heads_on_gpu import Operands, attend_by_scale
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.devices import eager_on_gpu
from subquad.utils.setting_types import Count


def naive_attention_sh(
    q: Float[Tensor, "n e"], context: Float[Tensor, "m d"], key: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor], scale: int, beta: float | Tensor = 0.0,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head as in the paper, for one sequence without padding; `key` and `value` are the head's linear maps."""
    pooled = torch.stack([window.mean(0) for window in context.split(scale)])  # Remark 5: downsample, then project
    k, v = key(pooled), value(pooled)
    mean = k.mean(0)  # Eq. 50
    return ((q - beta * mean) @ (k - beta * mean).T / math.sqrt(q.shape[1])).softmax(1) @ v  # Eq. 25 (beta = 0), Eq. 51


class AttentionSH(StatelessAttention):
    """y_i = Σ_h [ Σ_j softmax_j( (q_i^h - βμ^h)ᵀ (k_j^h - βμ^h) / √d_h ) v_j^h ] W_O^h with keys and values of X^(s_h).

    X^(s) is the context averaged over windows of s tokens. Queries are those of all tokens. μ^h is the mean key of
    head h. A window, also the last one, is averaged over its real tokens; windows without real tokens are no keys.

    Args:
        scales: window s of each head, one number for all heads, or null to choose by the number of heads: [1,2],
            [1,1,2,4], [1,1,2,2,4,4,8,8] and, for 16 heads, four each of 1, 2, 4 and 8.
        beta: weight β of the mean; 0 is Attention-SH, other values are Attention-BN+SH.
        learned: make β a parameter that starts at `beta`.

    Why the fast path is equal: heads that share a scale share one pooled context, and μ is the projection of the mean
    of the pooled context. The keys are not shifted: that changes all logits of a query alike, and the softmax cancels
    it.

    Examples:
        >>> import torch
        >>> from subquad import AttentionSH
        >>> layer = AttentionSH(dim=64, heads=4, scales=[1, 1, 2, 4])
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n² d mean(1/s)), memory O(n)"

    def __init__(
        self, site: Site, scales: Count | Sequence[Count] | None = None, beta: float = 0.0, learned: bool = False
    ) -> None:
        super().__init__(site)
        self.groups = scale_groups(scales, site.dim, site.heads)
        self.beta = nn.Parameter(torch.tensor([float(beta)])) if learned else beta
        self.recentred = learned or beta != 0
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        if eager_on_gpu(x) and x.shape[2] == self.site.dim:

            def of_group(group: ScaleGroup, part: Operands) -> Tensor:
                q, k, v = map(group.split, (part.q, *part.kv.chunk(2, -1)))
                bias = None if part.bias is None else part.bias[:, None, None]
                return softmax_attention(q, k, v, attn_mask=bias, dropout_p=self._dropout).transpose(1, 2).flatten(-2)

            weights, beta = weights_of(p.query, p.key, p.value, p.out), self.beta if self.recentred else None
            return attend_by_scale(x, context, masks.context, weights, self.groups, beta, of_group)
        scaled = at_scales(context, masks.context, self.groups)
        q = p.query(x)
        if self.recentred:
            q = q - self.beta * mean_keys(p.key, scaled, self.groups)
        heads = []
        for group in self.groups:
            tokens, real = scaled[group.scale]
            k, v = (group.split(group.project(linear, tokens)) for linear in (p.key, p.value))
            visible = None if real is None else real[:, None, None, :]
            y = softmax_attention(group.split(q[..., group.features]), k, v, attn_mask=visible, dropout_p=self._dropout)
            heads.append(y.transpose(1, 2).flatten(-2))
        return p.out(torch.cat(heads, -1))
