"""Splitting the width into heads."""

from jaxtyping import Float
from torch import Tensor


def split_heads(x: Float[Tensor, "b n d"], heads: int) -> Float[Tensor, "b h n e"]:
    """Splits the width into heads; a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
