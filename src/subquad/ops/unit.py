"""Vectors of unit length."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.utils.derivatives import by_torch


def unit(x: Float[Tensor, "*b e"]) -> Float[Tensor, "*b e"]:
    """x / ‖x‖, and 0 for 0.

    Where torch differentiates, the root of 0 is left out: its second derivative is NaN in reverse mode.
    """
    least = max(1e-12, torch.finfo(x.dtype).tiny)  # float16 rounds 1e-12 to 0
    if not by_torch():
        return F.normalize(x, dim=-1, eps=least)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    squares = wide.square().sum(-1, keepdim=True)
    root = squares.masked_fill(squares == 0, 1).sqrt()
    return (wide / root.masked_fill(squares == 0, 0).clamp_min(least)).to(x.dtype)
