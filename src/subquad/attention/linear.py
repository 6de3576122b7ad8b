"""Linear attention (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236, Eq. 5-7)."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.specs import Masks, Pattern, Site


class Linear(StatelessAttention):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / (φ(q_i)ᵀ Σ_j φ(k_j) + ε) in each head, with φ(x) = elu(x) + 1.

    No 1/√d scale; ε as in the authors' code. Padded keys get φ(k) = 0. There are
    no weights to drop: `site.dropout` is unused.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d d_h), memory O(n d)"

    def __init__(self, site: Site, eps: float = 1e-6) -> None:
        super().__init__(site)
        self.eps = eps
        self.projections = Projections(site.dim, site.heads)

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        q, k, v = p.qkv(x, context)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if masks.context is not None:
            k = k.masked_fill(~masks.context[:, None, :, None], 0)
        numerator = q @ (k.mT @ v)
        denominator = q @ k.sum(-2).unsqueeze(-1)
        return p.merge(numerator / (denominator + self.eps))
