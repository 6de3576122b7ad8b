"""Heads that read the context at scales of their own: windows of s tokens, averaged, are the tokens of scale s."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.errors import UserError
from subquad.ops.heads import split_heads
from subquad.ops.masking import masked_mean
from subquad.ops.pooling import mean_pool

CUSTOMARY = {2: (1, 2), 4: (1, 1, 2, 4), 8: (1, 1, 2, 2, 4, 4, 8, 8), 16: (1,) * 4 + (2,) * 4 + (4,) * 4 + (8,) * 4}
"""Scales by number of heads."""

Scaled = tuple[Float[Tensor, "b k d"], Bool[Tensor, "b k"] | None]
"""The context at one scale, and which of its tokens average at least one real token; None = all."""


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Neighbouring heads of one scale."""

    scale: int
    heads: int
    features: slice
    """What belongs to these heads in a width of all heads."""

    def project(self, linear: nn.Linear, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n f"]:
        """The part of a linear map that belongs to these heads."""
        return F.linear(x, linear.weight[self.features], linear.bias[self.features])

    def split(self, x: Float[Tensor, "b n f"]) -> Float[Tensor, "b h n e"]:
        """Cuts the width of these heads into heads."""
        return split_heads(x, self.heads)


def scale_groups(scales: int | Sequence[int] | None, dim: int, heads: int) -> list[ScaleGroup]:
    """Groups of neighbouring heads of equal scale; `scales` is one for all heads, one for each, or None = customary.

    Raises UserError for numbers that are not positive, for a list of another length, and where nothing is customary.
    """
    if scales is None and heads not in CUSTOMARY:
        raise UserError(
            f"No scales are customary for {heads} heads, only for {', '.join(map(str, CUSTOMARY))}; "
            "set attention.scales to one number for each head."
        )
    each = CUSTOMARY[heads] if scales is None else [scales] * heads if isinstance(scales, int) else list(scales)
    if len(each) != heads or min(each) < 1:
        raise UserError(f"attention.scales must be a positive number for each of the {heads} heads; got {list(each)}.")
    groups, start, width = [], 0, dim // heads
    for scale, members in itertools.groupby(each):
        size = len(list(members))
        groups.append(ScaleGroup(scale, size, slice(start * width, (start + size) * width)))
        start += size
    return groups


def at_scales(
    x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, groups: Sequence[ScaleGroup]
) -> dict[int, Scaled]:
    """The tokens at each scale in use; heads that share a scale share them."""
    found: dict[int, Scaled] = {}
    for scale in {group.scale for group in groups}:
        pooled, real = (x, mask) if scale == 1 else mean_pool(x, mask, min(scale, x.shape[1]))
        found[scale] = pooled, None if mask is None else real
    return found


def mean_keys(key: nn.Linear, scaled: dict[int, Scaled], groups: Sequence[ScaleGroup]) -> Float[Tensor, "b 1 d"]:
    """μ of every head over its real keys at its scale, heads side by side; the mean is taken before the projection."""
    means = {scale: masked_mean(x, mask) for scale, (x, mask) in scaled.items()}
    return torch.cat([group.project(key, means[group.scale]) for group in groups], -1)
