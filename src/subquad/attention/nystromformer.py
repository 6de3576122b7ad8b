"""Nyströmformer (Xiong et al. 2021, https://arxiv.org/abs/2102.03902, Eq. 11-14 and Algorithm 1)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.latents import columns_of_heads, gather, read, rows_of_heads
from subquad.ops.masking import masked_softmax, zero_padding
from subquad.ops.pooling import mean_pool
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Masks, Pattern, Site


class Nystromformer(StatelessAttention):
    """Y = softmax(Q K̃ᵀ) Z softmax(Q̃ Kᵀ) V + conv(V) in each head; Z ≈ softmax(Q̃ K̃ᵀ)⁺, all logits divided by √d_h.

    landmarks: Q̃ and K̃ are means of Q and K over segments of ceil(n / landmarks) tokens, n the longest input.
    pinv, iterations: "iterative" starts from Z = Aᵀ / (‖A‖₁ ‖A‖∞), A = softmax(Q̃ K̃ᵀ), and repeats
        Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))); "exact" is the Moore-Penrose inverse.
    kernel: odd number of taps of the convolution along the tokens, one filter for each head; null leaves it out, and so
        does cross-attention, where no value belongs to a query.

    Padding: a landmark is the mean of its real tokens, and a segment without any is no landmark: its row and column of
    A are 0, which pseudo-inverse and iteration keep. The convolution reads 0 at padding. `site.dropout` acts on
    softmax(Q K̃ᵀ).

    Means and affine maps commute, so tokens are pooled before they are projected. While h·landmarks ≤ d and nothing is
    convolved, the landmarks meet the tokens themselves and no n x d query, key or value is formed.

    Released code: the norms of the first Z are the largest of the whole batch, so that sequences change one another;
    segments are divided by their padded length, and the length must be a multiple of the landmarks.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n m d + m³) with m landmarks, memory O(n (d + h m))"

    def __init__(
        self,
        site: Site,
        landmarks: int = 64,
        kernel: int | None = 35,
        pinv: Literal["iterative", "exact"] = "iterative",
        iterations: int = 6,
    ) -> None:
        super().__init__(site)
        if landmarks < 1 or iterations < 1:
            raise UserError(
                f"Nyströmformer needs at least 1 landmark and 1 iteration, and got {landmarks} and {iterations}; "
                "raise attention.landmarks or attention.iterations."
            )
        if kernel is not None and (kernel < 1 or kernel % 2 == 0):
            raise UserError(
                f"Nyströmformer's convolution is centred on each token, which a kernel of {kernel} cannot be; "
                "choose an odd attention.kernel or null."
            )
        if pinv not in ("iterative", "exact"):
            raise UserError(f'There is no pseudo-inverse "{pinv}"; choose attention.pinv=iterative or exact.')
        self.pinv, self.iterations = pinv, iterations
        self.query_segment = math.ceil(site.query_len / landmarks)
        self.segment = math.ceil(site.context_len / landmarks)
        self.scale = (site.dim // site.heads) ** -0.5
        self.projections = Projections(site.dim, site.heads)
        self.filters = None
        if kernel is not None and site.pattern is Pattern.SELF:
            self.filters = nn.Parameter(torch.randn(site.heads, kernel) / math.sqrt(kernel))
        # What the convolution adds is no part of softmax attention.
        self.approximates_softmax = self.filters is None
        self.narrow = self.filters is None and site.heads * landmarks <= site.dim

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        pooled, slots = _landmarks(context, masks.context, self.segment)
        k = p.split(p.key(pooled)) * self.scale
        pooled_x, slots_x = pooled, slots
        if self.site.pattern is Pattern.CROSS:
            pooled_x, slots_x = _landmarks(x, masks.query, self.query_segment)
        q = p.split(p.query(pooled_x))
        inverse = self._inverse(q, k, slots_x, slots)
        dropout = self.site.dropout if self.training else 0.0
        if self.narrow:
            compressor = (q * self.scale) @ rows_of_heads(p.key, p.heads)
            gathered = gather(compressor.flatten(1, 2), context, masks.context).unflatten(1, (p.heads, -1))
            values = gathered @ rows_of_heads(p.value, p.heads).mT + p.value.bias.view(p.heads, 1, -1)
            readers, bias = k @ rows_of_heads(p.query, p.heads), (k @ p.query.bias.view(p.heads, -1, 1)).squeeze(-1)
            rows = inverse @ values @ columns_of_heads(p.out, p.heads)
            return read(x, readers, bias, rows, p.out.bias, slots, dropout)
        queries, keys, values = p.qkv(x, context)
        real = None if masks.context is None else masks.context[:, None, None, :]
        rows = inverse @ softmax_attention(q, keys, values, attn_mask=real)
        visible = None if slots is None else slots[:, None, None, :]
        y = softmax_attention(queries, k, rows, attn_mask=visible, dropout_p=dropout, scale=1.0)
        if self.filters is None:
            return p.merge(y)
        return p.merge(y + self._convolved(values, masks.context))

    def _inverse(
        self,
        q: Float[Tensor, "b h s e"],
        k: Float[Tensor, "b h r e"],
        slots_q: Bool[Tensor, "c s"] | None,
        slots: Bool[Tensor, "c r"] | None,
    ) -> Float[Tensor, "b h r s"]:
        """Z, at least in float32; 0 where a row or column of A is no landmark."""
        with torch.autocast(q.device.type, enabled=False):
            precise = torch.promote_types(q.dtype, torch.float32)
            logits = q.to(precise) @ k.to(precise).mT
            a = masked_softmax(logits, None if slots is None else slots[:, None, None, :])
            if slots_q is not None:
                a = a.masked_fill(~slots_q[:, None, :, None], 0)
            inverse = torch.linalg.pinv(a) if self.pinv == "exact" else _iterate(a.flatten(0, 1), self.iterations)
        return inverse.view(k.shape[:3] + q.shape[2:3]).to(q.dtype)

    def _convolved(
        self, values: Float[Tensor, "b h n e"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b h n e"]:
        """Each head's values, filtered along the tokens."""
        assert self.filters is not None
        # An image of width 1 in channels-last order: torch's one-dimensional convolution is several times slower.
        x = zero_padding(values.transpose(1, 2).flatten(2), mask).mT[..., None]
        taps = self.filters.repeat_interleave(values.shape[-1], 0)[:, None, :, None]
        y = F.conv2d(x, taps, padding=(taps.shape[2] // 2, 0), groups=x.shape[1])
        return y.squeeze(-1).unflatten(1, values.shape[1::2]).mT


def _landmarks(
    x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, segment: int
) -> tuple[Float[Tensor, "b s d"], Bool[Tensor, "b s"] | None]:
    """Means of the segments, and which segments hold a token; None where all do."""
    pooled, real = mean_pool(x, mask, segment)
    return pooled, None if mask is None else real


def _iterate(a: Float[Tensor, "b s r"], iterations: int) -> Float[Tensor, "b r s"]:
    """Razavi et al. 2014, as Eq. 13-14; each matrix by its own norms."""
    # Rows of A sum to 1, so its row norm is 1; the clamp is for a matrix without landmarks.
    z = a.mT / a.sum(1).amax(-1).clamp(min=torch.finfo(a.dtype).tiny)[:, None, None]
    for _ in range(iterations):
        az = a @ z
        inner = torch.baddbmm(az, az, az, beta=7, alpha=-1)
        z = torch.baddbmm(z, z, torch.baddbmm(az, az, inner, beta=15, alpha=-1), beta=13 / 4, alpha=-1 / 4)
    return z
