"""Bidirectional DeltaNet (Yang et al. 2024, https://arxiv.org/abs/2406.06484) and gated DeltaNet (2412.06464)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.chunked_scan import both_ways, gated_delta_scan, step_biases
from subquad.ops.depthwise import depthwise
from subquad.ops.masks import zero_padding
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Odd


class DeltaNet(StatelessAttention):
    """A state for each head and direction, in which a token replaces what its key reads by its value.

        S_i = exp(g_i) (I - β_i k_i k_iᵀ) S_{i-1} + β_i k_i v_iᵀ        y_i = S_iᵀ q_i / √d_h
        out = W_O RMSNorm((y + y') / 2)      y' is y of the tokens from the last to the first

    q, k, v = SiLU(conv(·)) of linear maps, q and k of length 1 in each head, β = σ(W_β x), for each direction its own.
    Padding is 0 before the convolution and has β = g = 0, so that it leaves every state as it is.
    `site.dropout` is unused, because no attention weights exist.

    Args:
        gated: with decays g_i = -exp(a_h) softplus(w_hᵀ x_i + b_h), for each direction their own, and an output gate
            SiLU(W_Z x) after the norm (gated DeltaNet); otherwise g = 0 and no gate (DeltaNet).
        kernel: taps of the depthwise convolutions of q, k and v, odd; null: none, and no SiLU.

    Why the fast path is equal: what the tokens of a chunk write is the solution of a triangular system. An exported
    program takes as many chunks of 64 tokens as its example has.

    Examples:
        >>> import torch
        >>> from subquad import DeltaNet
        >>> layer = DeltaNet(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: one direction, with causal convolutions of 4 taps; here two, with symmetric ones of 7. Values are
    twice as wide as keys there in the gated form.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d²), memory O(n d)"
    cannot_export = frozenset({"onnx"})

    def __init__(self, site: Site, gated: bool = False, kernel: Odd | None = 7) -> None:
        super().__init__(site)
        dim, heads = site.dim, site.heads
        self.projections = Projections(dim, heads)
        self.taps = nn.ParameterList(_taps(dim, kernel) for _ in range(3 if kernel else 0))
        self.strength = nn.Linear(dim, 2 * heads)
        self.norm = nn.RMSNorm(dim // heads, eps=1e-5)
        self.decay = nn.Linear(dim, 2 * heads, bias=False) if gated else None
        self.gate = nn.Linear(dim, dim) if gated else None
        if gated:
            self.log_rate = nn.Parameter(torch.empty(2 * heads).uniform_(1e-3, 16).log())  # as Mamba-2
            self.step_bias = nn.Parameter(step_biases(2 * heads))

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, real = self.projections, masks.context
        maps = [zero_padding(m(x), real) for m in (p.query, p.key, p.value)]
        if self.taps:
            maps = [F.silu(depthwise(t, taps)) for t, taps in zip(maps, self.taps, strict=True)]
        wide = torch.promote_types(x.dtype, torch.float32)
        q, k, v = (p.split(t.to(wide)) for t in maps)
        q, k = _unit(q) * q.shape[-1] ** -0.5, _unit(k)
        beta = zero_padding(self.strength(x).to(wide).sigmoid(), real).mT.chunk(2, 1)
        left, right = both_ways(
            gated_delta_scan, (q, q), (k, k), (v, v), beta, self._decays(x, masks), axes=(-2, -2, -2, -1, -1)
        )
        y = self.norm(((left + right) / 2).to(self.norm.weight.dtype)).transpose(1, 2).flatten(-2)
        return p.out((y if self.gate is None else y * F.silu(self.gate(x))).to(x.dtype))

    def _decays(self, x: Tokens, masks: Masks) -> tuple[Float[Tensor, "b h n"], ...]:
        """g of both directions."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.decay is None:
            none = x.new_zeros(x.shape[0], self.site.heads, x.shape[1], dtype=wide)
            return none, none
        steps = F.softplus(self.decay(x).to(wide) + self.step_bias)
        return zero_padding(-self.log_rate.exp() * steps, masks.context).mT.chunk(2, 1)


def _unit(x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n e"]:
    """x / |x|, with the released code's ε, so that it has all derivatives at 0."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def _taps(dim: int, kernel: int | None) -> Tensor:
    """Taps of a depthwise convolution `[d, 1, t]`, initialised as torch's."""
    return nn.init.uniform_(torch.empty(dim, 1, kernel or 0), -1, 1) * (kernel or 1) ** -0.5
