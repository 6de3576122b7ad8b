"""Splitting the width into heads."""

from jaxtyping import Float
from torch import Tensor

from subquad.specs import Tokens


def split_heads(x: Tokens, heads: int) -> Float[Tensor, "b h n e"]:
    """Splits the width into heads; a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
