"""Depthwise convolution along the tokens, or over the grid of an image whose rows follow one another."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.specs import Tokens


def depthwise(
    x: Tokens, kernel: Float[Tensor, "d s t"], bias: Float[Tensor, " d"] | None = None, width: int | None = None
) -> Tokens:
    """Convolves each feature with its kernel of s x t taps, both odd; 0 beyond the ends.

    `width` tokens are one row of the grid; None: all tokens are one row. The last row may be incomplete.
    """
    length, dim = x.shape[1:]
    width = length if width is None else min(width, length)
    filled = F.pad(x, (0, 0, 0, -length % width)) if length % width else x
    # The features stay the last axis in memory, so that nothing is rearranged.
    grid = filled.unflatten(1, (-1, width)).permute(0, 3, 1, 2)
    middle = (kernel.shape[1] // 2, kernel.shape[2] // 2)
    return (
        F.conv2d(grid, kernel[:, None], bias, padding=middle, groups=dim).permute(0, 2, 3, 1).flatten(1, 2)[:, :length]
    )


def depthwise_by_row(x: Tokens, kernel: Float[Tensor, "b d s t"], width: int | None = None) -> Tokens:
    """As `depthwise` with kernels for each row of the batch: one product of the shifted grid for each tap."""
    length, (high, wide) = x.shape[1], kernel.shape[2:]
    width = length if width is None else min(width, length)
    filled = F.pad(x, (0, 0, 0, -length % width)) if length % width else x
    grid = filled.unflatten(1, (-1, width))
    height = grid.shape[1]
    around = F.pad(grid, (0, 0, wide // 2, wide // 2, high // 2, high // 2))
    taps = kernel.permute(2, 3, 0, 1)[..., None, None, :]
    y = torch.zeros_like(grid)
    for a in range(high):
        for b in range(wide):
            y = y + taps[a, b] * around[:, a : a + height, b : b + width]
    return y.flatten(1, 2)[:, :length]
