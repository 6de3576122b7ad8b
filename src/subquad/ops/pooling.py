"""Pooling along the token axis over windows of equal size; a window is averaged over its real tokens only."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from subquad.ops.masking import zero_padding


def windows(x: Shaped[Tensor, "b n d"], size: int) -> Shaped[Tensor, "b k w d"]:
    """Cuts n tokens into ceil(n / size) windows of `size`; the last one is filled with zeros."""
    fill = -x.shape[1] % size
    # Padding by nothing would copy.
    return (F.pad(x, (0, 0, 0, fill)) if fill else x).unflatten(1, (-1, size))


def window_mask(
    mask: Bool[Tensor, "b n"] | None, length: int, size: int, device: torch.device
) -> Bool[Tensor, "b k w"]:
    """Which places of each window hold a real token; batch axis 1 when there is no padding."""
    real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask
    return F.pad(real, (0, -length % size)).unflatten(1, (-1, size))


def mean_pool(
    x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, size: int
) -> tuple[Float[Tensor, "b k d"], Bool[Tensor, "c k"]]:
    """Mean of the real tokens of each window, and which windows hold any."""
    real = window_mask(mask, x.shape[1], size, x.device)
    sums = windows(zero_padding(x, mask), size).sum(2)
    return sums / real.sum(2, keepdim=True).clamp(min=1).to(x.dtype), real.any(2)


def max_pool(
    x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, size: int
) -> tuple[Float[Tensor, "b k d"], Bool[Tensor, "c k"]]:
    """Largest value of the real tokens of each window and channel (0 where none is), and which windows hold any."""
    real = window_mask(mask, x.shape[1], size, x.device)
    tops = windows(x, size).masked_fill(~real[..., None], torch.finfo(x.dtype).min).amax(2)
    return tops.masked_fill(~real.any(2)[..., None], 0), real.any(2)
