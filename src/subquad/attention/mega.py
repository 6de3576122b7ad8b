"""Mega: moving average equipped gated attention (Ma et al. 2022, https://arxiv.org/abs/2209.10655, Section 3)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Affine, StatelessAttention
from subquad.ops.masks import zero_padding
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.pooling import window_mask, windows
from subquad.ops.softmax_attention import softmax_attention
from subquad.ops.state_space import factored_powers, two_sided_convolution
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count


class Mega(StatelessAttention):
    """x + Y is the gated mean of the input x and of H, the attention of one head within chunks, after a moving average.

        EMA(x)_t = η · h_t / √N,   h_t = α β x_t + (1 - α δ) h_{t-1}     plus the same from the last token
        X' = SiLU(EMA(x) + ω ⊙ x)
        q, k = κ ⊙ SiLU(X' W_z) + μ                       each with its own κ and μ
        O = f(q kᵀ + bias) SiLU(x W_v)                    within chunks; bias by relative position
        H = SiLU(X' W_h + (SiLU(X' W_γ) ⊙ O) U_h),   Y = σ(X' W_φ) ⊙ (H - x)

    h_t are N numbers for each feature, α and δ between 0 and 1. f is the softmax of logits divided by √z, or the
    laplace function of logits divided by the number of real tokens in the chunk. Padding is 0 in the average and hidden
    from the attention.

    Args:
        chunk: tokens that attend to one another; null: all (Mega without chunks).
        function: f.
        states: N, moving averages of each feature and direction.
        expand: width of values as a multiple of d.
        query: z, the width of queries and keys; null: d / 4.

    Why the fast path is equal: averages of both directions are one convolution by FFT, in float32 at least; its n taps
    are sums of products of 2√n powers.

    Examples:
        >>> import torch
        >>> from subquad import Mega
        >>> layer = Mega(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: the gate acts on the input before the norm of a pre-norm layer; lengths are multiples of the chunk;
    dropout of values and outputs too.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d (c + d) + n d log n), memory O(n (c + d))"

    def __init__(
        self, site: Site, chunk: Count | None = 128, function: Literal["softmax", "laplace"] = "softmax",
        states: Count = 16, expand: Count = 2, query: Count | None = None,
    ) -> None:  # fmt: skip
        super().__init__(site)
        dim, inner, width = site.dim, expand * site.dim, query or max(1, site.dim // 4)
        if chunk is None:
            self.fix_length("its relative positions")
            self.complexity = "time O(n²d + n d log n), memory O(n² + n d)"
        self.chunk, self.function, self.sizes = chunk, function, [dim, width, inner, dim]
        self.to_value, self.from_average, self.from_values = (
            Affine(*size) for size in ((dim, inner), (dim, sum(self.sizes)), (inner, dim))
        )
        for linear in (self.to_value, self.from_average, self.from_values):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        self.scale, self.shift = nn.Parameter(0.02 * torch.randn(2, width)), nn.Parameter(torch.zeros(2, width))
        self.bias = nn.Parameter(0.02 * torch.randn(2 * (chunk or site.context_len) - 1))
        self.skip = nn.Parameter(torch.randn(dim))
        signs = (1 - 2 * (torch.arange(states) % 2)).float()
        self.inflow, self.damping = (nn.Parameter(0.2 * torch.randn(2, dim, states)) for _ in range(2))
        self.into, self.out_of = (
            nn.Parameter(signs + 0.02 * torch.randn(2, dim, states)),
            nn.Parameter(torch.randn(2, dim, states)),
        )

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        real = masks.context
        moved = F.silu(self._average(zero_padding(x, real)) + self.skip * x).to(x.dtype)
        gate, z, reset, hidden = self.from_average(moved).split(self.sizes, -1)
        queries, keys = (F.silu(z)[..., None, :] * self.scale + self.shift).unbind(-2)
        values = zero_padding(F.silu(self.to_value(x)), real)
        read = self._within_chunks(queries, keys, values.to(queries.dtype), real)
        hidden = F.silu(hidden + self.from_values(read * F.silu(reset)))
        return gate.sigmoid() * (hidden - x)

    def _average(self, x: Tokens) -> Tokens:
        """EMA of both directions, as one convolution: η · α β (1 - α δ)^l / √N weights the token l steps away."""
        wide = torch.promote_types(x.dtype, torch.float32)
        inflow, damping = self.inflow.to(wide), self.damping.to(wide)
        alpha, kept = inflow.sigmoid(), 1 - inflow.sigmoid() * damping.sigmoid()
        with without_autocast(x):
            coarse, fine = factored_powers(kept.log(), x.shape[1])
            read = alpha * self.into * self.out_of / math.sqrt(alpha.shape[-1])
            left, right = ((read[..., None] * coarse).mT @ fine).flatten(-2)[..., : x.shape[1]]
            now = F.pad(right[:, :1], (0, x.shape[1] - 1))
            return two_sided_convolution(x.mT, left + now, F.pad(right[:, 1:], (0, 1))).mT

    def _within_chunks(
        self, q: Float[Tensor, "b n z"], k: Float[Tensor, "b n z"], v: Float[Tensor, "b n e"],
        real: Mask,
    ) -> Float[Tensor, "b n e"]:  # fmt: skip
        length = q.shape[1]
        size = length if self.chunk is None else self.chunk
        if not torch.compiler.is_exporting():
            size = max(1, min(size, length))
        seen = window_mask(real, length, size, q.device)[:, :, None]
        q, k, v = (windows(t, size) for t in (q, k, v))
        places = torch.arange(size, device=q.device)
        bias = self.bias[places - places[:, None] + len(self.bias) // 2].to(q.dtype)
        if self.function == "softmax":
            mask = torch.where(seen, bias, torch.finfo(bias.dtype).min).expand(q.shape[0], -1, -1, -1)
            return _first(softmax_attention(q, k, v, mask, self._dropout).flatten(1, 2), length)
        logits = q @ k.mT / seen.sum(-1, keepdim=True).clamp(min=1).to(q.dtype) + bias
        # The normal distribution with the mean √½ and the deviation √(1/4π), close to the square of ReLU.
        weights = (0.5 + 0.5 * torch.erf((logits - math.sqrt(0.5)) * math.sqrt(2 * math.pi))) * seen
        return _first((F.dropout(weights, self.site.dropout, self.training) @ v).flatten(1, 2), length)


def _first(x: Float[Tensor, "b m e"], length: int) -> Float[Tensor, "b n e"]:
    """The first tokens; a copy in exported programs, where the strides of a view would fix the length."""
    return F.pad(x, (0, 0, 0, length - x.shape[1])) if torch.compiler.is_exporting() else x[:, :length]
