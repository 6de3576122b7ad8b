"""Agent attention against its two softmaxes, with torch's adaptive pooling."""

from functools import partial

import pytest
from reference import agent as reference
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, one, stack, tokens
from subquad.attention.agent import Agent
from subquad.specs import Pattern
from subquad.utils.errors import UserError

layer = partial(reference.layer, heads=HEADS)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_printed_form(lengths: str) -> None:
    agree(stack(partial(Agent, agents=5), Pattern.SELF), layer, lengths)


def test_on_a_grid_that_is_no_square() -> None:
    """The released code takes the root of the number of tokens for both sides."""
    attention, x = one(partial(Agent, agents=4), grid=(3, 5), query_len=15, context_len=15), tokens(1, 15, 24)
    assert_close(attention(x)[0], layer(attention, x[0], x[0], None)[0])


def test_agents_of_a_grid_are_a_square_number() -> None:
    with pytest.raises(UserError, match=r"attention\.agents is 5; on a grid choose a square number"):
        stack(partial(Agent, agents=5), Pattern.SELF, grid=(6, 6))
