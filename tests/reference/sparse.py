"""Child et al. 2019, Section 4.2-4.3: softmax over the union of two sets of keys."""

from functools import partial

from torch import Tensor, nn

from reference import pattern

Place = int | Tensor
Seen = bool | Tensor


def first_set(i: Place, j: Place, form: str, block: int) -> Seen:
    """A1, both ways: the own block, or the window."""
    return i // block == j // block if form == "fixed" else abs(i - j) <= block


def second_set(i: Place, j: Place, form: str, block: int, summary: int) -> Seen:
    """A2, both ways: the last columns of every block, or every block-th token."""
    return j % block >= block - summary if form == "fixed" else (i - j) % block == 0


def sees(head: int, i: Place, j: Place, form: str, block: int, summary: int = 1, causal: bool = False) -> Seen:
    either = first_set(i, j, form, block) | second_set(i, j, form, block, summary)
    return either & (j <= i) if causal else either


def layer(
    attention: nn.Module, x: Tensor, context: Tensor, carry: Tensor | None, *, heads: int, **choices
) -> tuple[Tensor, Tensor | None]:
    return pattern.layer(attention, x, context, carry, heads=heads, sees=partial(sees, **choices))
