"""Linear Attention-BN, -SH and -BN+SH (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Appendix J.1)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.linear_attention import divisor, expand, head_dot, summable
from subquad.ops.masks import zero_padding
from subquad.ops.scaled_heads import at_scales, mean_keys, scale_groups
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count, NonNegative


def naive_linear_bn_sh(
    q: Float[Tensor, "n e"], context: Float[Tensor, "m d"], key: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor], scale: int, beta: float | Tensor = 1.0, eps: float = 1e-6,
    centre_keys: bool = True,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head for one sequence without padding; `key` and `value` are the head's linear maps.

    The paper's Eq. 50 and 51 (Attention-BN+SH) with the softmax replaced by the similarity of its linear attention
    (Section 2.2.1), as Table 5 evaluates it without a formula.
    """
    pooled = torch.stack([window.mean(0) for window in context.split(scale)])  # Remark 5: downsample, then project
    k, v = key(pooled), value(pooled)
    mean = beta * k.mean(0)  # Eq. 50
    similarity = (F.elu(q - mean) + 1) @ (F.elu(k - mean if centre_keys else k) + 1).T
    return similarity / (similarity.sum(1, keepdim=True) + eps) @ v  # Eq. 51, Section 2.2.1


class LinearBNSH(StatelessAttention):
    """y_i = φ(q_i - βμ)ᵀ Σ_j φ(k_j - βμ) v_jᵀ / (φ(q_i - βμ)ᵀ Σ_j φ(k_j - βμ) + ε) in each head, φ(x) = elu(x) + 1.

    Keys and values are those of the context averaged over windows of s tokens. μ is the mean key of the head. A window
    is averaged over its real tokens; windows without real tokens get φ(k) = 0. `site.dropout` is unused, because no
    attention weights exist.

    Args:
        beta: weight β of the mean; 0 does not shift queries and keys.
        learned: make β a parameter that starts at `beta`.
        scales: window s of each head, one number for all heads, or null to choose by the number of heads: [1,2],
            [1,1,2,4], [1,1,2,2,4,4,8,8] and, for 16 heads, four each of 1, 2, 4 and 8.
        eps: ε in the normaliser.

    Why the fast path is equal: sums over the keys are taken first, so no n x m matrix is formed:
    φ(K)ᵀ V = (φ(K)ᵀ C) W_V + (φ(K)ᵀ 1) b_V, and W_O acts on this state. A shift changes φ, unlike the softmax, so
    queries and keys are both shifted. μ is the projection of the mean of the pooled context.

    Examples:
        >>> import torch
        >>> from subquad import LinearBNSH
        >>> layer = LinearBNSH(dim=64, heads=4, learned=True, scales=[1, 1, 2, 4])
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d²), memory O(n d)"

    def __init__(
        self, site: Site, beta: float = 1.0, learned: bool = False, scales: Count | Sequence[Count] | None = None,
        eps: NonNegative = 1e-6,
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.groups = scale_groups(scales, site.dim, site.heads)
        self.beta = nn.Parameter(torch.tensor([float(beta)])) if learned else beta
        self.eps = eps
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        scaled = at_scales(context, masks.context, self.groups)
        shift = self.beta * mean_keys(p.key, scaled, self.groups)
        q = F.elu(p.query(x) - shift).add_(1).unflatten(-1, (p.heads, -1))
        products, sums = [], []
        for group in self.groups:  # φ(K)ᵀ C and φ(K)ᵀ 1 of the heads of one scale
            tokens, real = scaled[group.scale]
            k = F.elu(group.project(p.key, tokens) - shift[..., group.features]).add_(1)
            k = summable(zero_padding(k, real))
            products.append(k.mT @ tokens)
            sums.append(k.sum(1))
        total = torch.cat(sums, -1).unflatten(-1, (p.heads, -1))
        by_head = torch.cat(products, 1).unflatten(1, (p.heads, -1))
        values = by_head @ p.value.weight.view(p.heads, -1, x.shape[-1]).mT
        state = values + total[..., None] * p.value.bias.view(p.heads, 1, -1)
        normaliser = head_dot(q, total) + self.eps
        return expand(q * divisor(normaliser, masks.context).reciprocal(), state, p.out)
