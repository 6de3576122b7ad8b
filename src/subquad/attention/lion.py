"""LION: bidirectional linear attention with decays (Afzal et al. 2025, https://arxiv.org/abs/2502.16249, Section 3)."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.chunked_scan import both_ways, gated_scan
from subquad.ops.linear_attention import divisor
from subquad.ops.masks import zero_padding
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.unit import unit
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import NonNegative


class LION(StatelessAttention):
    """y_i = Σ_j M_ij φ(q_i)ᵀφ(k_j) v_j / (Σ_j M_ij φ(q_i)ᵀφ(k_j) + ε) in each head, with decays M of two directions.

        M_ij = λ_j ... λ_{i-1} for j < i,   1 for j = i,   λ_{i+1} ... λ_j for j > i

    A weight decays with what is between two tokens, the key's own λ included. Padded keys get φ(k) = 0 and λ = 1.
    `site.dropout` is unused, because no attention weights exist.

    Args:
        decay: none: λ = 1 and φ = elu + 1 (LION-LIT, the linear transformer); fixed: λ_h = σ(a_h), learned for each
            head (LION-D, as RetNet); selective: λ_i = 1 - σ(w_hᵀ x_i + b_h) (LION-S). With a decay, φ is SiLU + ½,
            divided by its length.
        eps: ε in the normaliser.

    Why the fast path is equal: M is the product of gates of a recurrence from the left plus one from the right, whose
    sums are computed in chunks; the diagonal, which both have, is subtracted. A column of ones beside the values gives
    the normaliser.

    Examples:
        >>> import torch
        >>> from subquad import LION
        >>> layer = LION(dim=64, heads=4, decay="fixed")
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: not free to use. It takes 1 as the λ of a class token, has no padding masks, and for the best results
    on Long Range Arena a decay for each feature with the initial values of HiPPO.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d²), memory O(n d)"

    def __init__(
        self, site: Site, decay: Literal["none", "fixed", "selective"] = "selective", eps: NonNegative = 1e-6
    ) -> None:
        super().__init__(site)
        self.decay, self.eps = decay, eps
        self.projections = Projections(site.dim, site.heads)
        self.rate = nn.Parameter(torch.randn(site.heads)) if decay == "fixed" else None
        self.gate = nn.Linear(site.dim, site.heads) if decay == "selective" else None

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, real = self.projections, masks.context
        q, k = (self._features(p.split(t)) for t in (p.query(x), p.key(context)))
        v = p.split(zero_padding(p.value(context), real)).to(k.dtype)
        if real is not None:
            k = k.masked_fill(~real[:, None, :, None], 0)
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        if self.decay == "none":
            with without_autocast(k):
                sums = q @ (k.mT @ v)
        else:
            log_decay = self._log_decay(x, masks)
            gate = F.pad(log_decay, (1, -1)), F.pad(log_decay, (-1, 1))  # of the token before, from either side
            left, right = both_ways(gated_scan, (q, q), (k, k), (v, v), gate, axes=(-2, -2, -2, -1))
            sums = left + right - (q * k).sum(-1, keepdim=True) * v
        total, normaliser = sums[..., :-1], sums[..., -1:] + self.eps
        return p.merge((total / divisor(normaliser, real)).to(x.dtype))

    def _features(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n e"]:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.elu(x) + 1 if self.decay == "none" else unit(F.silu(x) + 0.5)

    def _log_decay(self, x: Tokens, masks: Masks) -> Float[Tensor, "b h n"]:
        """log λ = log σ(a) or log(1 - σ(w x + b)), without a logarithm of a small difference; 0 at padding."""
        if self.rate is not None:
            log_decay = -F.softplus(-self.rate)[:, None].expand(x.shape[0], -1, x.shape[1])
        else:
            assert self.gate is not None
            wide = torch.promote_types(x.dtype, torch.float32)
            log_decay = -F.softplus(self.gate(x).to(wide)).mT
        return log_decay if masks.context is None else log_decay.masked_fill(~masks.context[:, None], 0)
