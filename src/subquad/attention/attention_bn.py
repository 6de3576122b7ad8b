"""Attention-BN (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 19-24 and 26)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.masking import masked_mean, zero_padding
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Masks, Pattern, Site


class AttentionBN(StatelessAttention):
    """y_i = Σ_j softmax_j( ((q_i − βμ) ⊘ s)ᵀ ((k_j − βμ) ⊘ s) / √d_h ) v_j in each head, μ = mean_j k_j, s = 1.

    beta: weight of the mean; 0 is softmax attention.
    learned: β is a parameter that starts at `beta`.
    variance: the full form, s² = mean_j (k_j − μ)² + ε.

    Statistics are those of the real keys of a sequence, per head and feature, the same in training and evaluation.

    (q − βμ)ᵀ(k_j − βμ) and (q − βμ)ᵀk_j differ by a number without j, which the softmax drops: keys stay as they are.
    μ = (mean_j x_j) W_K + b_K, so recentring costs a mean of the context and one subtraction on the queries. The full
    form centres the keys too, for the sake of precision, and divides both sides.

    Released code: none.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n)"

    def __init__(
        self, site: Site, beta: float = 1.0, learned: bool = False, variance: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__(site)
        self.beta = nn.Parameter(torch.tensor([float(beta)])) if learned else beta
        self.variance, self.eps = variance, eps
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        mean = p.key(masked_mean(context, masks.context))
        q, k = p.query(x) - self.beta * mean, p.key(context)
        if self.variance:
            # Centred keys, s once on each side and in float32 at least: 1 / s² of a feature that hardly varies, and
            # the slope of 1 / s, are beyond half precision.
            k = zero_padding(k - mean, masks.context)
            wide = k.to(torch.promote_types(k.dtype, torch.float32))
            inverse = (masked_mean(wide.square(), masks.context) + self.eps).rsqrt()
            q, k = (q * inverse).to(q.dtype), (wide * inverse).to(k.dtype)
        visible = None if masks.context is None else masks.context[:, None, None, :]
        dropout = self.site.dropout if self.training else 0.0
        q, k, v = p.split(q), p.split(k), p.split(p.value(context))
        return p.merge(softmax_attention(q, k, v, attn_mask=visible, dropout_p=dropout))
