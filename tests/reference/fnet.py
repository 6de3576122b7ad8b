"""Lee-Thorp et al. 2021, Eq. 3: matrices of cosines and sines on both sides of the tokens, zeros up to the length."""

import math

import torch
from torch import Tensor, nn


def waves(size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of 2π i j / size."""
    index = torch.arange(size, dtype=torch.float64)
    angles = 2 * math.pi / size * index[:, None] * index
    return angles.cos(), angles.sin()


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, longest: int
) -> tuple[Tensor, Tensor | None]:
    filled = torch.cat([x, x.new_zeros(longest - len(x), x.shape[1])])
    (cos_n, sin_n), (cos_d, sin_d) = waves(longest), waves(x.shape[1])
    return (cos_n @ filled @ cos_d - sin_n @ filled @ sin_d)[: len(x)], carry
