"""Linear attention (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236, Eq. 5-7)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.linear_attention import divisor, expand, head_dot, kv_state, summable
from subquad.ops.linear_attention_on_gpu import linear_attention, use_gpu_path, weights_of
from subquad.ops.masks import zero_padding
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.derivatives import by_torch, one_at_a_time
from subquad.utils.setting_types import NonNegative


class Linear(StatelessAttention):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / (φ(q_i)ᵀ Σ_j φ(k_j) + ε) in each head, with φ(x) = elu(x) + 1.

    There is no scale 1/√d. Padded keys get φ(k) = 0. `site.dropout` is unused, because no attention weights
    exist.

    Args:
        eps: ε in the normaliser, as in the authors' code.

    Why the fast path is equal: with the context tokens C and the heads side by side, φ(K)ᵀ V = (φ(K)ᵀ C) W_V +
    (φ(K)ᵀ 1) b_V, and W_O acts on this state. A layer then costs four products of n x d by d x d, two of them for
    queries and keys, and no values of single tokens are formed.

    Examples:
        >>> import torch
        >>> from subquad import Linear
        >>> layer = Linear(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: as the paper, with ε = 1e-6 in the normaliser.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site: Site, eps: NonNegative = 1e-6) -> None:
        super().__init__(site)
        self.eps = eps
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        if use_gpu_path(x, context):
            weights = weights_of(p.query, p.key, p.value, p.out)
            return linear_attention(x, masks.context, weights, p.heads, self.eps)
        q = self._features(p.query, x)
        k = summable(zero_padding(self._features(p.key, context), masks.context))
        q, k = q.unflatten(-1, (p.heads, -1)), k.unflatten(-1, (p.heads, -1))
        normaliser = head_dot(q, k.sum(1)) + self.eps
        return expand(q * divisor(normaliser, masks.context).reciprocal(), kv_state(k, context, p.value), p.out)

    @staticmethod
    def _features(linear: nn.Linear, x: Tokens) -> Float[Tensor, "b n e"]:
        x = linear(x)
        features: Tensor = F.elu(x) + 1 if by_torch() else _EluPlusOne.apply(x)
        return features


class _EluPlusOne(torch.autograd.Function):
    """φ(x) = elu(x) + 1 = max(x, 0) + exp(min(x, 0)), whose derivative min(φ(x), 1) needs φ(x) only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = x.clamp(max=0).exp_().add_(F.relu(x))
        ctx.save_for_backward(features)
        return features

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return features.clamp(max=1).mul_(gradient)
