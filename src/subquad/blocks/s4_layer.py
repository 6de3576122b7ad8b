"""The S4 layer and its residual block, for sequences in the layout `[b, d, n]`, channels before tokens."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.blocks.channel_norm import NORMS
from subquad.blocks.state_space_parameters import StateSpace
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.state_space import two_sided_convolution
from subquad.specs import Mask


class S4Layer(nn.Module):
    """y = GLU(W dropout(GELU(dropout(k * x + D x)))), with the two-sided kernel k of each channel's state space model.

    Padding is set to 0 first, so that it has no effect. All tokens share a dropout mask. Kernel and convolution are at
    least float32; the kernel is computed once for all rows of a batch.

    Source: Gu et al. 2022, https://arxiv.org/abs/2111.00396, and the released code (state-spaces/s4, 2024-02-21).
    """

    def __init__(self, dim: int, kernel: StateSpace, dropout: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.skip = nn.Parameter(torch.randn(dim))
        self.dropout = nn.Dropout1d(dropout)
        self.out = nn.Linear(dim, 2 * dim)

    def forward(self, x: Float[Tensor, "b d n"], valid: Mask) -> Float[Tensor, "b d n"]:
        if valid is not None:
            x = x.masked_fill(~valid[:, None], 0)
        with without_autocast(x):
            y = two_sided_convolution(x, *self.kernel(x.shape[-1]).unbind())
        y = self.dropout(F.gelu(self.dropout(y + self.skip[:, None] * x)))
        mixed = torch.baddbmm(self.out.bias[:, None], self.out.weight.expand(y.shape[0], -1, -1), y)
        return F.glu(mixed, 1)


class S4Block(nn.Module):
    """pre: x ← x + dropout(layer(norm(x))); post: x ← norm(x + dropout(layer(x))); the layer is S4, S4D or S5."""

    def __init__(
        self, dim: int, layer: nn.Module, dropout: float, order: Literal["pre", "post"],
        norm: Literal["batch", "layer"],
    ) -> None:  # fmt: skip
        super().__init__()
        self.pre = order == "pre"
        self.norm = NORMS[norm](dim)
        self.layer = layer
        self.dropout = nn.Dropout1d(dropout)

    def forward(self, x: Float[Tensor, "b d n"], valid: Mask) -> Float[Tensor, "b d n"]:
        y = x + self.dropout(self.layer(self.norm(x, valid) if self.pre else x, valid))
        return y if self.pre else self.norm(y, valid)
