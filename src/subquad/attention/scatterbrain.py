"""Scatterbrain (Chen et al. 2021, https://arxiv.org/abs/2110.15343, Section 4, Algorithm 1), with a sliding window."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.blocks import around, around_mask, blocks, unblocks
from subquad.ops.dropout import dropout
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.random_features import orthogonal_directions
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.derivatives import by_torch, differentiated_once
from subquad.utils.setting_types import Even, Natural

LEAST = 1e-24
"""Least estimated sum of weights outside the window; without it rounding could make the difference negative."""


class Scatterbrain(StatelessAttention):
    """Y = D⁻¹ (φ(Q) φ(K)ᵀ + S) V in each head: features estimate all pairs, pairs in a window are exact.

    S_ij = exp(q_iᵀk_j / √d_h) - φ(q_i)ᵀφ(k_j) where -⌊w/2⌋ <= j - i < ⌈w/2⌉, else 0; D divides rows by their sums.
    φ(x) = exp([Ωx; -Ωx] - ‖x‖²/2) / √M of x / d_h^{1/4}, Ω with M/2 orthogonal random rows, the same for all heads.

    Padded keys have φ = 0 and are hidden from the window. `site.dropout` acts on the exact pairs.

    Args:
        window: w, keys that are exact; 0 gives Performer with these features, 2n gives softmax attention.
        features: number M of features, even.

    Why the fast path is equal: features of a query are divided by its largest, those of keys by the largest of the row
    and head, and the factors are restored in logarithms. The sum of the estimates outside the window is at least 1e-24.
    Blocks of queries share one window of keys, so no n x n weights exist. All is computed in float32 at least.

    Examples:
        >>> import torch
        >>> from subquad import Scatterbrain
        >>> layer = Scatterbrain(dim=64, heads=4, window=32)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: adds 1e-4 / √M to every feature, which biases the estimate; it draws Ω once, as here.
    """

    patterns = frozenset({Pattern.SELF})
    cannot_export = frozenset({"length"})
    complexity = "time O(n d (d + w + M)), memory O(n (d + h (w + M)))"
    approximates_softmax = True

    directions: Tensor

    def __init__(self, site: Site, window: Natural = 64, features: Even = 32) -> None:
        super().__init__(site)
        self.window, self.features = window, features
        self.projections = Projections(site.dim, site.heads)
        self.register_buffer("directions", orthogonal_directions(features // 2, site.dim // site.heads))

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        maps = ((p.query, x), (p.key, context), (p.value, context))
        q, k, v = (linear(t).unflatten(-1, (p.heads, -1)) for linear, t in maps)
        with without_autocast(x):
            q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
            y = self._combined(q, k, v, masks.context)
        return p.out(y.flatten(-2).to(x.dtype))

    def _combined(
        self, q: Float[Tensor, "b n h e"], k: Float[Tensor, "b n h e"], v: Float[Tensor, "b n h e"], mask: Mask
    ) -> Float[Tensor, "b n h e"]:
        features_q, features_k, scale = self._features(q, k, mask)
        sums = features_k.permute(0, 2, 3, 1) @ F.pad(v, (0, 1), value=1).transpose(1, 2)
        far = (features_q.transpose(1, 2) @ sums).transpose(1, 2)
        if not self.window:
            return far[..., :-1] / far[..., -1:].clamp(min=LEAST)
        visible, real = self._visible(mask, q)
        logits = self._products(q, k) / math.sqrt(q.shape[-1])
        logits = logits.masked_fill(~(visible & real), torch.finfo(logits.dtype).min / 2)
        estimates = self._products(features_q, features_k) * visible
        far, scale = self._cut(far), self._cut(scale)
        rest = (far[..., -1:] - estimates.sum(-1, keepdim=True)).clamp(min=LEAST)
        normaliser = _log_of_sum(logits.logsumexp(-1, keepdim=True), rest.log() + scale)
        of_features = (scale - normaliser).exp()
        exact = dropout((logits - normaliser).exp(), self.site.dropout, self.training)
        y = (exact - estimates * of_features) @ self._window(v) + of_features * far[..., :-1]
        return unblocks(y.transpose(1, 2).flatten(-2), *q.shape[:2]).unflatten(-1, q.shape[2:])

    def _features(
        self, q: Float[Tensor, "b n h e"], k: Float[Tensor, "b n h e"], mask: Mask
    ) -> tuple[Float[Tensor, "b n h f"], Float[Tensor, "b n h f"], Float[Tensor, "b n h 1"]]:
        """φ(Q) and φ(K) up to factors, and the logarithm of the factors of q_i and of K together.

        The largest features cancel in the sums, so their derivative is left out.
        """
        directions = self.directions.to(q.dtype) * q.shape[-1] ** -0.25
        along_q, along_k = F.linear(q, directions), F.linear(k, directions)
        half_q, half_k = (x.square().sum(-1, keepdim=True) / (2 * math.sqrt(x.shape[-1])) for x in (q, k))
        top_q = along_q.detach().abs().amax(-1, keepdim=True)
        top_k = along_k.detach().abs().amax(-1, keepdim=True) - half_k.detach()
        if mask is not None:
            padding = ~mask[:, :, None, None]
            top_k = top_k.masked_fill(padding, torch.finfo(top_k.dtype).min)
            half_k = half_k.masked_fill(padding, math.inf)
        top_k = top_k.amax(1, keepdim=True)
        if mask is not None:
            top_k = top_k.masked_fill(~mask.any(1)[:, None, None, None], 0)
        features_q = (torch.cat([along_q, -along_q], -1) - top_q).exp()
        features_k = (torch.cat([along_k, -along_k], -1) - (half_k + top_k)).exp()
        return features_q, features_k, top_q - half_q + top_k - math.log(self.features)

    def _sizes(self, x: Float[Tensor, "b n h f"]) -> tuple[int, int]:
        """Tokens of a window, no wider than both sides of the longest sequence, and of a block of queries."""
        window = min(self.window, 2 * self.longest(x, x)[1])
        return window, min(max(window, 16), 64)

    def _products(self, q: Float[Tensor, "b n h f"], k: Float[Tensor, "b n h f"]) -> Float[Tensor, "blocks h w v"]:
        """Inner products of each query of a block with the keys of its window."""
        return self._cut(q) @ self._window(k).mT

    def _cut(self, x: Float[Tensor, "b n h f"]) -> Float[Tensor, "blocks h w f"]:
        return blocks(x.flatten(-2), self._sizes(x)[1]).unflatten(-1, x.shape[2:]).transpose(1, 2)

    def _window(self, x: Float[Tensor, "b n h f"]) -> Float[Tensor, "blocks h v f"]:
        window, block = self._sizes(x)
        rows = around(x.flatten(-2), block, window // 2, (window - 1) // 2)
        return rows.unflatten(-1, x.shape[2:]).transpose(1, 2)

    def _visible(
        self, mask: Mask, x: Float[Tensor, "b n h e"]
    ) -> tuple[Bool[Tensor, "w v"], Bool[Tensor, "blocks 1 1 v"]]:
        """Which places of its window each query of a block sees, and which places hold a real token."""
        window, block = self._sizes(x)
        before, after = window // 2, (window - 1) // 2
        places = torch.arange(before + block + after, device=x.device)
        offset = places - torch.arange(block, device=x.device)[:, None]
        real = around_mask(mask, x.shape[1], block, before, after, x.device)
        real = real if mask is not None else real.repeat(x.shape[0], 1)
        return (offset >= 0) & (offset < window), real[:, None, None]


def _log_of_sum(a: Float[Tensor, "*g 1"], b: Float[Tensor, "*g 1"]) -> Float[Tensor, "*g 1"]:
    """log(exp a + exp b); torch's second derivative of `logaddexp` is NaN where one term is negligible."""
    return torch.stack([a, b]).logsumexp(0) if by_torch() else differentiated_once(torch.logaddexp(a, b))
