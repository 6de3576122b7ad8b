"""Chen et al. 2022, Section 3: softmax over the partners of a block in a butterfly, and global blocks."""

from functools import partial

from torch import Tensor, nn

from reference import pattern


def sees(head: int, i: int, j: int, block: int, factors: int, global_blocks: int) -> bool:
    a, b = i // block, j // block
    return a < global_blocks or b < global_blocks or b in (a, *(a ^ 2**s for s in range(factors)))


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, **choices
) -> tuple[Tensor, Tensor | None]:
    return pattern.layer(attention, x, context, carry, heads=heads, sees=partial(sees, **choices))
