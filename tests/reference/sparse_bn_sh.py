"""The patterns of sparse attention with scaled heads as dense masks."""

import math

import torch
from torch import Tensor

from reference import sparse


def allowed(n: int, scale: int, form: str, block: int = 0, summary: int = 0, window: int = 0) -> Tensor:
    """[n, m]: which windows of `scale` tokens a query sees, those that its own window sees in their pattern."""
    i, j = (torch.arange(-(-n // scale)).view(shape) for shape in ((-1, 1), (1, -1)))
    if form == "band":
        seen = (i - j).abs() <= math.ceil(window / 2 / scale)
    else:
        seen = sparse.sees(0, i, j, form, math.ceil(block / scale), math.ceil(summary / scale))
    return seen.repeat_interleave(scale, 0)[:n]
