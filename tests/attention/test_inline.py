"""InLine against its matrix of weights."""

from functools import partial

import pytest
import torch
from reference import inline as reference
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.inline import InLine
from subquad.specs import Pattern

layer = partial(reference.layer, heads=HEADS)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_printed_form(lengths: str) -> None:
    agree(stack(InLine, Pattern.SELF), layer, lengths)


@pytest.mark.slow
def test_on_a_grid_it_convolves_rows_and_columns() -> None:
    layers = stack(partial(InLine, kernel=3), Pattern.SELF, grid=(6, 7), query_len=42, context_len=42)
    agree(layers, partial(layer, width=7), "37")


def test_weights_of_a_query_sum_to_one() -> None:
    """Equal values come out as they are, where nothing is convolved."""
    attention, x = one(InLine), tokens(2, LONGEST, 24)
    for parameter in (attention.kernels.weight, attention.kernels.bias, attention.projections.value.weight):
        torch.nn.init.zeros_(parameter)
    equal = attention.projections.out(attention.projections.value.bias)
    assert_close(attention(x), equal.expand_as(x))
