"""InLine: injective linear attention (Han et al. 2024, https://arxiv.org/abs/2412.06590, Eq. 5-7)."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.depthwise import depthwise_by_row
from subquad.ops.masks import count, masked_mean, zero_padding
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Odd


class InLine(StatelessAttention):
    """y_i = Σ_j w_ij v_j + Conv_r(v)_i in each head, with w_ij = s q_iᵀ k_j / n + (1 - s q_iᵀ k̄) / n and s = 1/√d_h.

    Weights of a query sum to 1 by a difference instead of a quotient, so that queries of different lengths have
    different weights; they may be negative. n and the mean key k̄ are of the real tokens. Conv_r is a depthwise
    convolution with kernels that a small network computes of the mean token, r = W_2 GELU(W_1 x̄) in each head: over
    `site.grid` if there is one, otherwise along the tokens. `site.dropout` is unused.

    Args:
        kernel: taps of Conv_r along each axis, odd.

    Why the fast path is equal: Σ_j w_ij v_j = (s/n) q_i (KᵀV) + (1 - s q_iᵀ k̄) v̄.

    Examples:
        >>> import torch
        >>> from subquad import InLine
        >>> layer = InLine(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: square images only; no padding masks. It has feature maps as an option, which are the identity in
    the published models.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site: Site, kernel: Odd = 3) -> None:
        super().__init__(site)
        self.width = site.grid[1] if site.grid else None
        if site.grid:
            self.fix_grid()
        self.projections = Projections(site.dim, site.heads)
        self.taps = (kernel, kernel) if site.grid else (1, kernel)
        own = site.dim // site.heads
        # Rows of a head by rows of a head, for all heads.
        self.hidden = nn.Linear(own, site.dim)
        self.kernels = nn.Linear(own, site.dim * self.taps[0] * self.taps[1])

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, real = self.projections, masks.context
        q, k, v = p.query(x), zero_padding(p.key(context), real), zero_padding(p.value(context), real)
        n = count(real, v.shape[1])
        root = n**-0.5 if isinstance(n, int) else n.to(v.dtype).rsqrt()
        keys, values = p.split(k * root), p.split(v * root)
        scale = (v.shape[2] // p.heads) ** -0.5
        heads = p.split(q) * scale
        mean_k, mean_v = (p.split(masked_mean(t, real)) for t in (k, v))
        y = heads @ (keys.mT @ values) + (1 - heads @ mean_k.mT) * mean_v
        local = depthwise_by_row(v, self._kernels(masked_mean(x, real)).to(v.dtype), self.width)
        return p.out(y.transpose(1, 2).flatten(-2) + local)

    def _kernels(self, mean: Float[Tensor, "b 1 d"]) -> Float[Tensor, "b d s t"]:
        heads = mean.unflatten(-1, (self.projections.heads, -1)).squeeze(1)
        kernels = _by_head(self.kernels, F.gelu(_by_head(self.hidden, heads)))
        return kernels.flatten(1).unflatten(1, (-1, *self.taps))


def _by_head(linear: nn.Linear, x: Float[Tensor, "b h e"]) -> Float[Tensor, "b h f"]:
    """Multiplies each head by its own rows of the weight."""
    heads = x.shape[1]
    weight, bias = linear.weight.unflatten(0, (heads, -1)), linear.bias.unflatten(0, (heads, -1))
    return (weight @ x[..., None]).squeeze(-1) + bias
