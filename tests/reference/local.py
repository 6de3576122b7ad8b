"""Parmar et al. 2018, Section 3.3, in one dimension: softmax over the neighbours of each query."""

from functools import partial

from torch import Tensor, nn

from reference import pattern


def sees(head: int, i: int, j: int, window: int, blockwise: bool = False) -> bool:
    """|i - j| <= window / 2, or the same run of `window` tokens."""
    if blockwise:
        first = i - i % window
        return j in range(first, first + window)
    return abs(i - j) <= window / 2


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, window: int, blockwise: bool
) -> tuple[Tensor, Tensor | None]:
    chosen = partial(sees, window=window, blockwise=blockwise)
    return pattern.layer(attention, x, context, carry, heads=heads, sees=chosen)
