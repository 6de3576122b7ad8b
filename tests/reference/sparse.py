"""Child et al. 2019, Section 4.2-4.3: softmax over the union of two sets of keys."""

from functools import partial

from torch import Tensor, nn

from reference import pattern


def first_set(i: int, j: int, form: str, block: int) -> bool:
    """A1, both ways: the own block, or the window."""
    return i // block == j // block if form == "fixed" else abs(i - j) <= block


def second_set(i: int, j: int, form: str, block: int, summary: int) -> bool:
    """A2, both ways: the last columns of every block, or every block-th token."""
    return j % block in range(block - summary, block) if form == "fixed" else (i - j) % block == 0


def sees(head: int, i: int, j: int, form: str, block: int, summary: int = 1, causal: bool = False) -> bool:
    if causal and j > i:
        return False
    return first_set(i, j, form, block) or second_set(i, j, form, block, summary)


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, **choices
) -> tuple[Tensor, Tensor | None]:
    return pattern.layer(attention, x, context, carry, heads=heads, sees=partial(sees, **choices))
