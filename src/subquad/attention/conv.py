"""Attention-Conv1D and Attention-Conv2D (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 43 and 45)."""

import itertools
import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.depthwise import depthwise
from subquad.ops.masks import zero_padding
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Odd


def naive_attention_conv(
    q: Float[Tensor, "n e"], k: Float[Tensor, "n e"], v: Float[Tensor, "n e"], kernel: Float[Tensor, "s t"], width: int,
    leading: int = 0,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head as in the paper, for one sequence without padding.

    `width` tokens are one row of the grid (all tokens for Conv1D); the first `leading` tokens precede the grid.
    """
    q, k = (torch.cat([x[:leading], naive_convolution(x[leading:], kernel, width)]) for x in (q, k))
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(1) @ v  # Eq. 43 (two axes), Eq. 45 (kernel of one row)


def naive_convolution(x: Float[Tensor, "n e"], kernel: Float[Tensor, "s t"], width: int) -> Float[Tensor, "n e"]:
    """Depthwise convolution over the grid with the same kernel for all channels; 0 beyond the last token."""
    y = torch.zeros_like(x)
    for i in range(len(x)):
        for a, b in itertools.product(*map(range, kernel.shape)):
            row, column = i // width + a - kernel.shape[0] // 2, i % width + b - kernel.shape[1] // 2
            j = row * width + column
            if row >= 0 and 0 <= column < width and j < len(x):
                y[i] += kernel[a, b] * x[j]
    return y


class AttentionConv(StatelessAttention):
    """y_i = Σ_j softmax_j( (Conv Q)_iᵀ (Conv K)_j / √d_h ) v_j in each head.

    Conv is a depthwise convolution with one kernel for each head, the same for all its features, for queries and for
    keys. It starts as the identity, which is softmax attention. Beyond the ends of the sequence or grid, and at
    padding, queries and keys count as 0.

    Args:
        kernel: taps along each axis, odd.
        axes: 1 convolves along the tokens, 2 over the grid `site.grid`. Tokens before the grid (a class token) are not
            convolved. Without a grid the tokens are one row. A shorter sequence fills the first cells of the grid.

    Examples:
        >>> import torch
        >>> from subquad import AttentionConv
        >>> layer = AttentionConv(dim=64, heads=4, kernel=7)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n²d + n s d), memory O(n)"

    def __init__(self, site: Site, kernel: Odd = 5, axes: Literal[1, 2] = 1) -> None:
        super().__init__(site)
        self.height, self.width = (site.grid if axes == 2 else None) or (1, site.query_len)
        self.leading = site.query_len - self.height * self.width
        if self.leading < 0:
            raise UserError(
                f"A grid of {self.height} x {self.width} has more places than the {site.query_len} tokens; "
                "build the attention with as many tokens as places, or more."
            )
        if axes == 2 and site.grid:
            self.fix_grid()
        self.projections = Projections(site.dim, site.heads)
        shape = (kernel, kernel) if axes == 2 else (1, kernel)
        self.kernel = nn.Parameter(torch.zeros(site.heads, *shape))
        nn.init.ones_(self.kernel.data[:, shape[0] // 2, shape[1] // 2])

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        q, k = (p.split(self._convolve(zero_padding(y, masks.context))) for y in (p.query(x), p.key(context)))
        v = p.split(p.value(context))
        visible = None if masks.context is None else masks.context[:, None, None, :]
        return p.merge(softmax_attention(q, k, v, attn_mask=visible, dropout_p=self._dropout))

    def _convolve(self, x: Tokens) -> Tokens:
        tokens = x[:, self.leading :]
        if not tokens.shape[1]:
            return x
        kernel = self.kernel.repeat_interleave(tokens.shape[2] // len(self.kernel), 0)
        mixed = depthwise(tokens, kernel, width=self.width if self.height > 1 else None)
        return torch.cat([x[:, : self.leading], mixed], 1) if self.leading else mixed
