"""Windows of s tokens, one by one: what a head of scale s reads."""

import torch
from torch import Tensor


def pool(x: Tensor, scale: int) -> Tensor:
    """The mean of each window; the last one may be shorter."""
    return torch.stack([window.mean(0) for window in x.split(scale)])
