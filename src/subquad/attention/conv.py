"""Attention-Conv1D and Attention-Conv2D (Nguyen et al. 2023, https://arxiv.org/abs/2406.13781, Eq. 43 and 45)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.errors import UserError
from subquad.ops.masking import zero_padding
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Masks, Pattern, Site


class AttentionConv(StatelessAttention):
    """y_i = Σ_j softmax_j( (Conv Q)_iᵀ (Conv K)_j / √d_h ) v_j in each head.

    Conv weighs the neighbours of a token: one kernel for each head, the same for all its features, for queries and for
    keys. It starts as the identity, which is softmax attention.

    kernel: taps along each axis, odd.
    axes: 1 along the tokens, 2 over the grid of `site.grid`; tokens ahead of the grid (a class token) stay as they are,
        without a grid the tokens are one row, and a shorter sequence is the first places of the grid.

    Beyond the ends, beyond a shorter sequence and at padding queries and keys count as 0.

    Released code: none.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n²d + n s d), memory O(n)"

    def __init__(self, site: Site, kernel: int = 5, axes: int = 1) -> None:
        super().__init__(site)
        if axes not in (1, 2):
            raise UserError(f"Convolution is along 1 or 2 axes, not {axes}; set attention.axes to 1 or 2.")
        if kernel < 1 or kernel % 2 == 0:
            raise UserError(f"A kernel of {kernel} taps has no middle; choose an odd attention.kernel from 1.")
        self.height, self.width = (site.grid if axes == 2 else None) or (1, site.query_len)
        self.leading = site.query_len - self.height * self.width
        if self.leading < 0:
            raise UserError(
                f"A grid of {self.height} x {self.width} has more places than the {site.query_len} tokens; "
                "build the attention with as many tokens as places, or more."
            )
        self.projections = Projections(site.dim, site.heads)
        shape = (kernel, kernel) if axes == 2 else (1, kernel)
        self.kernel = nn.Parameter(torch.zeros(site.heads, *shape))
        nn.init.ones_(self.kernel.data[:, shape[0] // 2, shape[1] // 2])

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        q, k = (p.split(self._convolve(zero_padding(y, masks.context))) for y in (p.query(x), p.key(context)))
        v = p.split(p.value(context))
        visible = None if masks.context is None else masks.context[:, None, None, :]
        dropout = self.site.dropout if self.training else 0.0
        return p.merge(softmax_attention(q, k, v, attn_mask=visible, dropout_p=dropout))

    def _convolve(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        tokens = x[:, self.leading :]
        length, dim = tokens.shape[1:]
        if not length:
            return x
        width = min(self.width, length)
        filled = F.pad(tokens, (0, 0, 0, -length % width)) if length % width else tokens
        # The features stay the last axis in memory, so that nothing is rearranged.
        grid = filled.unflatten(1, (-1, width)).permute(0, 3, 1, 2)
        kernel = self.kernel.repeat_interleave(dim // len(self.kernel), 0)[:, None]
        middle = (kernel.shape[2] // 2, kernel.shape[3] // 2)
        mixed = F.conv2d(grid, kernel, padding=middle, groups=dim).permute(0, 2, 3, 1).flatten(1, 2)[:, :length]
        return torch.cat([x[:, : self.leading], mixed], 1) if self.leading else mixed
