"""Linear Attention-BN, -SH and -BN+SH (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Appendix J.1)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.kernel_attention import head_dot, read
from subquad.ops.masking import zero_padding
from subquad.ops.scaled_heads import at_scales, mean_keys, scale_groups
from subquad.specs import Masks, Pattern, Site


class LinearBNSH(StatelessAttention):
    """y_i = φ(q_i − βμ)ᵀ Σ_j φ(k_j − βμ) v_jᵀ / (φ(q_i − βμ)ᵀ Σ_j φ(k_j − βμ) + ε) in each head, φ(x) = elu(x) + 1.

    Keys and values are those of the context averaged over windows of s tokens, μ is the mean of the head's keys.

    beta: weight of the mean; 0 leaves queries and keys where they are.
    learned: β is a parameter that starts at `beta`.
    scales: s of each head, one number for all heads, or null = by the number of heads: [1,2], [1,1,2,4],
        [1,1,2,2,4,4,8,8] and, for 16 heads, each of these twice.

    A window is averaged over its real tokens and is a key where it has any; other keys get φ(k) = 0. There are no
    weights to drop: `site.dropout` is unused.

    Unlike the softmax, φ does not forget a shift: queries and keys are both centred. The context is pooled before it is
    projected, μ is the projection of a mean, φ(K)ᵀ V = (φ(K)ᵀ C) W_V + (φ(K)ᵀ 1) b_V, and W_O acts on this state.

    Released code: none.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d²), memory O(n d)"

    def __init__(
        self,
        site: Site,
        beta: float = 1.0,
        learned: bool = False,
        scales: int | Sequence[int] | None = None,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(site)
        self.groups = scale_groups(scales, site.dim, site.heads)
        self.beta = nn.Parameter(torch.tensor([float(beta)])) if learned else beta
        self.eps = eps
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        scaled = at_scales(context, masks.context, self.groups)
        shift = self.beta * mean_keys(p.key, scaled, self.groups)
        q = F.elu(p.query(x) - shift).add_(1).unflatten(-1, (p.heads, -1))
        products, sums = [], []
        for group in self.groups:
            tokens, real = scaled[group.scale]
            k = F.elu(group.project(p.key, tokens) - shift[..., group.features]).add_(1)
            k = zero_padding(k, real)
            products.append(k.mT @ tokens)
            sums.append(k.sum(1))
        total = torch.cat(sums, -1).unflatten(-1, (p.heads, -1))
        by_head = torch.cat(products, 1).unflatten(1, (p.heads, -1))
        values = by_head @ p.value.weight.view(p.heads, -1, x.shape[-1]).mT
        state = values + total[..., None] * p.value.bias.view(p.heads, 1, -1)
        normaliser = head_dot(q, total) + self.eps
        return read(q * normaliser.reciprocal(), state, p.out)
