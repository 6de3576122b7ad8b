"""Vectors of unit length."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.utils.derivatives import by_torch


def unit(x: Float[Tensor, "*b e"]) -> Float[Tensor, "*b e"]:
    """x / ‖x‖, and 0 for 0.

    Where torch differentiates, the root of 0 is left out: its second derivative is NaN in reverse mode.
    """
    if not by_torch():
        return F.normalize(x, dim=-1)
    squares = x.square().sum(-1, keepdim=True)
    root = squares.masked_fill(squares == 0, 1).sqrt()
    return x / root.masked_fill(squares == 0, 0).clamp_min(1e-12)
