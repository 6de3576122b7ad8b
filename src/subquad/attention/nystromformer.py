"""Nyströmformer (Xiong et al. 2021, https://arxiv.org/abs/2102.03902, Eq. 11-14 and Algorithm 1)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.latent_attention import columns_of_heads, compress, expand, rows_of_heads
from subquad.ops.linear_attention_on_gpu import weights_of
from subquad.ops.masks import masked_softmax, zero_padding
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.nystromformer_on_gpu import nystromformer
from subquad.ops.pooling import mean_pool
from subquad.ops.pseudo_inverse_on_gpu import pseudo_inverse
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.devices import eager_on_gpu
from subquad.utils.setting_types import Count, Odd


def naive_nystromformer(
    q: Float[Tensor, "n e"], k: Float[Tensor, "m e"], v: Float[Tensor, "m e"], segments: tuple[int, int],
    iterations: int | None = 6, taps: Float[Tensor, " t"] | None = None,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head as in the paper, for one sequence without padding.

    segments: tokens that one landmark averages, of the queries and of the keys. iterations: None takes the exact
    pseudo-inverse. taps: the filter of the convolution, None for none.
    """
    q_means, k_means = (
        torch.stack([part.mean(0) for part in x.split(size)]) for x, size in zip((q, k), segments, strict=True)
    )
    scale = math.sqrt(q.shape[1])
    first = (q @ k_means.T / scale).softmax(1)
    middle = (q_means @ k_means.T / scale).softmax(1)
    last = (q_means @ k.T / scale).softmax(1)
    inverse = torch.linalg.pinv(middle) if iterations is None else naive_inverse(middle, iterations)
    y = first @ inverse @ last @ v  # Algorithm 1
    if taps is None:
        return y
    padded = F.pad(v, (0, 0, len(taps) // 2, len(taps) // 2))
    return y + torch.stack([taps @ padded[i : i + len(taps)] for i in range(len(v))])  # the paper's skip connection


def naive_inverse(a: Float[Tensor, "s r"], iterations: int) -> Float[Tensor, "r s"]:
    """The iteration of Razavi et al. 2014 towards the pseudo-inverse of A."""
    eye = torch.eye(len(a), dtype=a.dtype)
    z = a.T / (a.sum(0).max() * a.sum(1).max())  # ‖A‖₁ ‖A‖∞; entries of A are positive
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4  # Eq. 13-14
    return z


class Nystromformer(StatelessAttention):
    """Y = softmax(Q K̃ᵀ) Z softmax(Q̃ Kᵀ) V + conv(V) in each head; Z ≈ softmax(Q̃ K̃ᵀ)⁺, all logits divided by √d_h.

    Q̃ and K̃ are the landmarks: means of Q and K over segments of ⌈n / landmarks⌉ tokens, n the longest input. Padding: a
    landmark is the mean of its real tokens. A segment without real tokens is no landmark: its row and column of
    A = softmax(Q̃ K̃ᵀ) are 0, and stay 0 in the pseudo-inverse and in the iteration. The convolution reads 0 at padding.
    `site.dropout` acts on softmax(Q K̃ᵀ).

    Args:
        landmarks: number of landmarks.
        kernel: taps of the convolution along the tokens, odd, one filter for each head; null for no convolution.
            Cross-attention has none, because no value belongs to a query.
        pinv: "iterative" starts from Z = Aᵀ / (‖A‖₁ ‖A‖∞) and repeats Z ← ¼ Z (13 I - A Z (15 I - A Z (7 I - A Z)));
            "exact" computes the Moore-Penrose inverse.
        iterations: how often the iteration is repeated.

    Why the fast path is equal: means and affine maps commute, so tokens are pooled before they are projected. If
    h·landmarks ≤ d and nothing is convolved, the landmarks are multiplied by the tokens themselves, and no n x d query,
    key or value is formed: Q̃ Kᵀ = (Q̃ W_K) Cᵀ + const, where the softmax cancels the constant.

    Examples:
        >>> import torch
        >>> from subquad import Nystromformer
        >>> layer = Nystromformer(dim=64, heads=4, max_len=512, landmarks=16)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: the norms of the first Z are the largest of the whole batch, so that sequences change one another;
    segments are divided by their padded length, and the length must be a multiple of the landmarks.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n m d + m³) with m landmarks, memory O(n (d + h m))"

    def __init__(
        self, site: Site, landmarks: Count = 64, kernel: Odd | None = 35,
        pinv: Literal["iterative", "exact"] = "iterative", iterations: Count = 6,
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.landmarks, self.pinv, self.iterations = landmarks, pinv, iterations
        self.scale = (site.dim // site.heads) ** -0.5
        self.projections = Projections(site.dim, site.heads)
        self.filters = None
        if kernel is not None and site.pattern is Pattern.SELF:
            self.filters = nn.Parameter(torch.randn(site.heads, kernel) / math.sqrt(kernel))
        # With the convolution the output no longer estimates that of softmax attention.
        self.approximates_softmax = self.filters is None
        self.narrow = self.filters is None and site.heads * landmarks <= site.dim

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        query_segment, segment = (math.ceil(length / self.landmarks) for length in self.longest(x, context))
        own = context is x and self.site.pattern is Pattern.SELF
        if own and self.pinv == "iterative" and not self.narrow and eager_on_gpu(x):
            weights, sizes = weights_of(p.query, p.key, p.value, p.out), (p.heads, segment, self.iterations)
            return nystromformer(x, masks.context, weights, self.filters, *sizes, self._dropout)
        pooled, slots = _landmarks(context, masks.context, segment)
        k = p.split(p.key(pooled)) * self.scale
        pooled_x, slots_x = pooled, slots
        if self.site.pattern is Pattern.CROSS:
            pooled_x, slots_x = _landmarks(x, masks.query, query_segment)
        q = p.split(p.query(pooled_x))
        inverse = self._inverse(q, k, slots_x, slots)
        if self.narrow:
            # Each product with n tokens uses x itself; the maps W_Q, W_K, W_V and W_O act on the landmarks only.
            compressor = (q * self.scale) @ rows_of_heads(p.key, p.heads)
            compressed = compress(compressor.flatten(1, 2), context, masks.context).unflatten(1, (p.heads, -1))
            values = compressed @ rows_of_heads(p.value, p.heads).mT + p.value.bias.view(p.heads, 1, -1)
            expanders, bias = k @ rows_of_heads(p.query, p.heads), (k @ p.query.bias.view(p.heads, -1, 1)).squeeze(-1)
            rows = inverse @ values @ columns_of_heads(p.out, p.heads)
            return expand(x, expanders, bias, rows, p.out.bias, slots, self._dropout)
        queries, keys, values = p.qkv(x, context)
        real = None if masks.context is None else masks.context[:, None, None, :]
        rows = inverse @ softmax_attention(q, keys, values, attn_mask=real)
        visible = None if slots is None else slots[:, None, None, :]
        y = softmax_attention(queries, k, rows, attn_mask=visible, dropout_p=self._dropout, scale=1.0)
        if self.filters is None:
            return p.merge(y)
        return p.merge(y + self._convolved(values, masks.context))

    def _inverse(
        self, q: Float[Tensor, "b h s e"], k: Float[Tensor, "b h r e"], slots_q: Bool[Tensor, "c s"] | None,
        slots: Bool[Tensor, "c r"] | None,
    ) -> Float[Tensor, "b h r s"]:  # fmt: skip
        """Z, in float32 at least; 0 in rows and columns that are no landmarks."""
        with without_autocast(q):
            precise = torch.promote_types(q.dtype, torch.float32)
            logits = q.to(precise) @ k.to(precise).mT
            a = masked_softmax(logits, None if slots is None else slots[:, None, None, :])
            if slots_q is not None:
                a = a.masked_fill(~slots_q[:, None, :, None], 0)
            iterate = pseudo_inverse if eager_on_gpu(a) else _iterate
            inverse = torch.linalg.pinv(a) if self.pinv == "exact" else iterate(a.flatten(0, 1), self.iterations)
        return inverse.view(k.shape[:3] + q.shape[2:3]).to(q.dtype)

    def _convolved(self, values: Float[Tensor, "b h n e"], mask: Mask) -> Float[Tensor, "b h n e"]:
        """Each head's values, filtered along the tokens."""
        assert self.filters is not None
        # As an image of width 1 in channels-last order: torch's one-dimensional convolution is several times slower.
        x = zero_padding(values.transpose(1, 2).flatten(2), mask).mT[..., None]
        taps = self.filters.repeat_interleave(values.shape[-1], 0)[:, None, :, None]
        y = F.conv2d(x, taps, padding=(taps.shape[2] // 2, 0), groups=x.shape[1])
        return y.squeeze(-1).unflatten(1, values.shape[1::2]).mT


def _landmarks(x: Tokens, mask: Mask, segment: int) -> tuple[Float[Tensor, "b s d"], Bool[Tensor, "b s"] | None]:
    """Means of the segments, and which segments hold a token; None where all do."""
    pooled, real = mean_pool(x, mask, segment)
    return pooled, None if mask is None else real


def _iterate(a: Float[Tensor, "b s r"], iterations: int) -> Float[Tensor, "b r s"]:
    """The iteration of `naive_inverse`, with the norms of each matrix."""
    # Rows of A sum to 1, so ‖A‖∞ = 1; the clamp serves a matrix without landmarks, whose sums are 0.
    z = a.mT / a.sum(1).amax(-1).clamp(min=torch.finfo(a.dtype).tiny)[:, None, None]
    for _ in range(iterations):
        az = a @ z
        inner = torch.baddbmm(az, az, az, beta=7, alpha=-1)
        z = torch.baddbmm(z, z, torch.baddbmm(az, az, inner, beta=15, alpha=-1), beta=13 / 4, alpha=-1 / 4)
    return z
