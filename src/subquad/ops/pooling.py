"""Pooling of real tokens over windows of equal size."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from subquad.ops.masks import zero_padding
from subquad.specs import Mask, Tokens


def windows(x: Shaped[Tensor, "b n d"], size: int) -> Shaped[Tensor, "b k w d"]:
    """Cuts n tokens into ⌈n / size⌉ windows; the last one is filled with zeros."""
    fill = -x.shape[1] % size
    # F.pad would copy x even if there is nothing to fill. A compiled program does not branch on the length.
    filled = F.pad(x, (0, 0, 0, fill)) if torch.compiler.is_compiling() or fill else x
    return filled.unflatten(1, (-1, size))


def window_mask(mask: Mask, length: int, size: int, device: torch.device) -> Bool[Tensor, "b k w"]:
    """Which positions of each window hold a real token; the batch axis is 1 if there is no padding."""
    real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
    return F.pad(real, (0, -length % size)).unflatten(1, (-1, size))


def mean_pool(x: Tokens, mask: Mask, size: int) -> tuple[Float[Tensor, "b k d"], Bool[Tensor, "c k"]]:
    """Mean of the real tokens of each window, and which windows have real tokens."""
    real = window_mask(mask, x.shape[1], size, x.device)
    sums = windows(zero_padding(x, mask), size).sum(2)
    return sums / real.sum(2, keepdim=True).clamp(min=1).to(x.dtype), real.any(2)


def max_pool(x: Tokens, mask: Mask, size: int) -> tuple[Float[Tensor, "b k d"], Bool[Tensor, "c k"]]:
    """Maximum over the real tokens of each window (0 if it has none), and which windows have real tokens."""
    real = window_mask(mask, x.shape[1], size, x.device)
    tops = windows(x, size).masked_fill(~real[..., None], torch.finfo(x.dtype).min).amax(2)
    return tops.masked_fill(~real.any(2)[..., None], 0), real.any(2)
