"""Attention-BN (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 19-24 and 26)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.masks import masked_mean, zero_padding
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Positive


def naive_attention_bn(
    q: Float[Tensor, "n e"], k: Float[Tensor, "m e"], v: Float[Tensor, "m e"], beta: float | Tensor = 1.0,
    variance: bool = False, eps: float = 1e-5,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head as in the paper, for one sequence without padding."""
    mean = k.mean(0)  # Eq. 23
    std = ((k - mean).square().mean(0) + eps).sqrt() if variance else 1.0  # Eq. 23; Eq. 26 omits the division
    q, k = (q - beta * mean) / std, (k - beta * mean) / std
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(1) @ v  # Eq. 22 (beta = 1, variance), Eq. 26 (beta, no variance)


class AttentionBN(StatelessAttention):
    """y_i = Σ_j softmax_j( ((q_i - βμ) ⊘ s)ᵀ ((k_j - βμ) ⊘ s) / √d_h ) v_j in each head; μ is the mean key, s = 1.

    The statistics are those of the real keys of each sequence, for each head and feature. They are the same in
    training and evaluation.

    Args:
        beta: weight β of the mean; 0 gives softmax attention.
        learned: make β a parameter that starts at `beta`.
        variance: divide queries and keys by the standard deviation s of the keys: s² = mean_j (k_j - μ)² + ε.
        eps: ε in s².

    Why the fast path is equal: (q - βμ)ᵀ(k_j - βμ) and (q - βμ)ᵀ k_j differ by a number that does not depend on j,
    which the softmax cancels, so only the queries are shifted. The key map is affine, so μ = (mean_j x_j) W_K + b_K:
    shifting costs a mean of the context and one subtraction. The form with the standard deviation centres the keys
    too, for the sake of precision, and divides both sides.

    Examples:
        >>> import torch
        >>> from subquad import AttentionBN
        >>> layer = AttentionBN(dim=64, heads=4, learned=True)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n)"

    def __init__(
        self, site: Site, beta: float = 1.0, learned: bool = False, variance: bool = False, eps: Positive = 1e-5
    ) -> None:
        super().__init__(site)
        self.beta = nn.Parameter(torch.tensor([float(beta)])) if learned else beta
        self.variance, self.eps = variance, eps
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        mean = p.key(masked_mean(context, masks.context))
        q, k = p.query(x) - self.beta * mean, p.key(context)
        if self.variance:
            # In float32 at least: 1 / s² of a feature that hardly varies, and the slope of 1 / s, exceed the range of
            # half precision.
            k = zero_padding(k - mean, masks.context)
            wide = k.to(torch.promote_types(k.dtype, torch.float32))
            inverse = (masked_mean(wide.square(), masks.context) + self.eps).rsqrt()
            q, k = (q * inverse).to(q.dtype), (wide * inverse).to(k.dtype)
        visible = None if masks.context is None else masks.context[:, None, None, :]
        q, k, v = p.split(q), p.split(k), p.split(p.value(context))
        return p.merge(softmax_attention(q, k, v, attn_mask=visible, dropout_p=self._dropout))
