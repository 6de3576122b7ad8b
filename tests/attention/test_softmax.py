"""Softmax attention against Eq. 1 of its paper."""

import copy
from functools import partial

import pytest
import torch
from reference import softmax as reference
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, one, stack, tokens
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

layer = partial(reference.layer, heads=HEADS)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize(
    "choices",
    [{"fused": True}, {"fused": False}, {"fused": False, "heads_at_once": 1}, {"fused": False, "heads_at_once": 2}],
    ids=str,
)
def test_equals_the_printed_form(choices: dict, pattern: Pattern, lengths: str) -> None:
    agree(stack(partial(Softmax, **choices), pattern), layer, lengths)


def test_heads_at_once_without_weights_are_refused() -> None:
    with pytest.raises(UserError, match=r"heads_at_once only where attention\.fused is false"):
        one(partial(Softmax, heads_at_once=1))


def test_values_of_one_give_one() -> None:
    attention = one(Softmax)
    with torch.no_grad():
        attention.projections.value.weight.zero_()
        attention.projections.value.bias.fill_(1)
        attention.projections.out.weight.copy_(torch.eye(24))
        attention.projections.out.bias.zero_()
    x = tokens(2, 37, 24)
    assert_close(attention(x, x, Masks())[0], torch.ones_like(x))


def test_no_token_to_read_gives_the_output_bias() -> None:
    attention = one(partial(Softmax, fused=False), Pattern.CROSS)
    nothing = Masks(context=torch.zeros(2, 5, dtype=torch.bool))
    y, _ = attention(tokens(2, 3, 24), tokens(2, 5, 24), nothing)
    assert_close(y, attention.projections.out.bias.expand(2, 3, -1))


def test_the_carry_of_others_passes_through() -> None:
    x, carry = tokens(2, 5, 24), tokens(2, 3, 24)
    assert one(Softmax)(x, x, Masks(), carry)[1] is carry


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_keeps_the_mean(fused: bool) -> None:
    attention = one(partial(Softmax, fused=fused), dropout=0.4)
    exact, x = copy.deepcopy(attention).eval(), tokens(1, 5, 24)
    many = x.expand(4000, -1, -1)
    draws, _ = attention(many, many, Masks())
    assert not torch.equal(draws[0], draws[1])
    assert_close(draws.mean(0), exact(x, x, Masks())[0][0], rtol=0, atol=0.06)
