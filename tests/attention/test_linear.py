"""Linear attention against the explicit matrix of similarities."""

from functools import partial

import pytest
import torch
from reference import linear as reference
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, one, stack, tokens
from subquad.attention.linear import Linear
from subquad.specs import Masks, Pattern

layer = partial(reference.layer, heads=HEADS)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
def test_equals_the_printed_form(pattern: Pattern, lengths: str) -> None:
    agree(stack(Linear, pattern), layer, lengths)


def test_epsilon_is_added_to_the_normaliser() -> None:
    agree(stack(partial(Linear, eps=0.1), Pattern.SELF), partial(layer, eps=0.1), "padded")


def test_values_of_one_give_one() -> None:
    attention = one(partial(Linear, eps=0.0))
    with torch.no_grad():
        attention.projections.value.weight.zero_()
        attention.projections.value.bias.fill_(1)
        attention.projections.out.weight.copy_(torch.eye(24))
        attention.projections.out.bias.zero_()
    x = tokens(2, 37, 24)
    assert_close(attention(x, x, Masks())[0], torch.ones_like(x))


def test_duplicated_context_changes_nothing() -> None:
    attention, x, context = one(partial(Linear, eps=0.0), Pattern.CROSS), tokens(2, 5, 24), tokens(2, 13, 24)
    twice = torch.cat([context, context], 1)
    assert_close(attention(x, twice, Masks())[0], attention(x, context, Masks())[0])


def test_the_carry_of_others_passes_through() -> None:
    x, carry = tokens(2, 5, 24), tokens(2, 3, 24)
    assert one(Linear)(x, x, Masks(), carry)[1] is carry
