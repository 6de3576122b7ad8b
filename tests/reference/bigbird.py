"""Zaheer et al. 2020, Section 2: softmax over a band, the first and last block, and random blocks."""

from functools import partial

from torch import Tensor, nn

from reference import pattern


def sees(head: int, i: int, j: int, block: int, random: list, last: int) -> bool:
    """`random[head][block of the query]` lists blocks of keys."""
    a, b = i // block, j // block
    return a in (0, last) or b in (0, last, a - 1, a, a + 1, *random[head][a])


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, block: int
) -> tuple[Tensor, Tensor | None]:
    chosen = partial(sees, block=block, random=attention.random.tolist(), last=(len(x) - 1) // block)
    return pattern.layer(attention, x, context, carry, heads=heads, sees=chosen)
