"""cosFormer (Qin et al. 2022, https://arxiv.org/abs/2202.08791, Section 3)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.cosine_attention import expand, kv_state
from subquad.ops.linear_attention_on_gpu import in_half, linear_attention, use_gpu_path, weights_of
from subquad.ops.masks import zero_padding
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Positive


class CosFormer(StatelessAttention):
    """y_i = Σ_j w_ij v_j / Σ_j w_ij in each head, with w_ij = ReLU(q_i)ᵀ ReLU(k_j) cos(π/2 · (i - j) / M).

    i and j count from 1, and M is the longest sequence of the site, so that no weight is negative and none depends on
    the padding of a batch. Padded keys get ReLU(k) = 0. There is no scale 1/√d. `site.dropout` is unused, because no
    attention weights exist.

    Args:
        eps: least sum of weights; a query whose features are all 0 gives y = 0.

    Why the fast path is equal: cos(a - b) = cos a cos b + sin a sin b, so each head has two sums over the keys,
    Σ_j cos_j φ(k_j) v_jᵀ and the same with sin. A query multiplies both in one product, weighs the results by cos_i and
    sin_i, and divides by Σ_j w_ij.

    Examples:
        >>> import torch
        >>> from subquad import CosFormer
        >>> layer = CosFormer(dim=64, heads=4, max_len=512)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: M is the padded length of the batch, and padding is not masked.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site: Site, eps: Positive = 1e-6) -> None:
        super().__init__(site)
        self.eps = eps
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, longest = self.projections, max(self.longest(x, context))
        if use_gpu_path(x, context) and not in_half(x):  # 1 / eps exceeds the range of float16
            weights = weights_of(p.query, p.key, p.value, p.out)
            return linear_attention(x, masks.context, weights, p.heads, self.eps, self._wave(x, longest))
        k = zero_padding(p.key(context, "relu"), masks.context).unflatten(-1, (p.heads, -1))
        v = p.value(context).unflatten(-1, (p.heads, -1))
        sums = kv_state(k, v, self._wave(context, longest))
        dtype = v.dtype
        # Frees memory.
        del k, v
        q = p.query(x, "relu").unflatten(-1, (p.heads, -1))
        # In float32 until here, because 1 / eps exceeds the range of float16.
        return p.out(expand(q, self._wave(x, longest), *sums, self.eps).flatten(-2).to(dtype))

    def _wave(self, x: Tokens, longest: int) -> Float[Tensor, "n 2"]:
        """[cos, sin] of π/2 · i / M."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        place = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=dtype)
        angle = place * (math.pi / 2 / longest)
        return torch.stack([angle.cos(), angle.sin()], -1)
