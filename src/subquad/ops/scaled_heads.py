"""Heads whose context is averaged over windows of s tokens; s is the scale of the head."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.ops.heads import split_heads
from subquad.ops.masks import masked_mean
from subquad.ops.pooling import mean_pool
from subquad.specs import Mask, Tokens
from subquad.utils.errors import UserError

DEFAULT_SCALES = {
    2: (1, 2),
    4: (1, 1, 2, 4),
    8: (1, 1, 2, 2, 4, 4, 8, 8),
    16: (1,) * 4 + (2,) * 4 + (4,) * 4 + (8,) * 4,
}
"""Default scales by number of heads."""

Scaled = tuple[Float[Tensor, "b k d"], Bool[Tensor, "b k"] | None]
"""The context at one scale, and which of its windows have real tokens; None if all have."""


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Neighbouring heads of one scale."""

    scale: int
    heads: int
    features: slice
    """Channels of these heads in the width of all heads."""

    def project(self, linear: nn.Linear, x: Tokens) -> Float[Tensor, "b n f"]:
        """The part of a linear map that belongs to these heads."""
        return F.linear(x, linear.weight[self.features], linear.bias[self.features])

    def split(self, x: Float[Tensor, "b n f"]) -> Float[Tensor, "b h n e"]:
        """Splits the width of these heads into heads."""
        return split_heads(x, self.heads)


def scale_groups(scales: int | Sequence[int] | None, dim: int, heads: int) -> list[ScaleGroup]:
    """Groups of neighbouring heads of equal scale.

    Args:
        scales: one number for all heads, one for each head, or None for the defaults of this number of heads.

    Raises:
        UserError: for a list of the wrong length, and a number of heads without default scales.
    """
    if scales is None and heads not in DEFAULT_SCALES:
        raise UserError(
            f"There are no default scales for {heads} heads, only for {', '.join(map(str, DEFAULT_SCALES))}; "
            "set attention.scales to one number for each head."
        )
    each = DEFAULT_SCALES[heads] if scales is None else [scales] * heads if isinstance(scales, int) else list(scales)
    if len(each) != heads:
        raise UserError(f"attention.scales must be one number for each of the {heads} heads; got {list(each)}.")
    groups, start, width = [], 0, dim // heads
    for scale, members in itertools.groupby(each):
        size = len(list(members))
        groups.append(ScaleGroup(scale, size, slice(start * width, (start + size) * width)))
        start += size
    return groups


def at_scales(x: Tokens, mask: Mask, groups: Sequence[ScaleGroup]) -> dict[int, Scaled]:
    """The pooled tokens at each scale in use."""
    pooled_at: dict[int, Scaled] = {}
    for scale in {group.scale for group in groups}:
        pooled, real = (x, mask) if scale == 1 else mean_pool(x, mask, min(scale, x.shape[1]))
        pooled_at[scale] = pooled, None if mask is None else real
    return pooled_at


def mean_keys(key: nn.Linear, scaled: dict[int, Scaled], groups: Sequence[ScaleGroup]) -> Float[Tensor, "b 1 e"]:
    """μ, the mean real key of every head at its scale, heads side by side; the mean is taken before the projection."""
    means = {scale: masked_mean(x, mask) for scale, (x, mask) in scaled.items()}
    return torch.cat([group.project(key, means[group.scale]) for group in groups], -1)
