"""FLatten against the matrix of focused similarities."""

from functools import partial

import pytest
import torch
from reference import flatten as reference
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.flatten import FLatten
from subquad.specs import Masks, Pattern

layer = partial(reference.layer, heads=HEADS)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_printed_form(lengths: str) -> None:
    agree(stack(FLatten, Pattern.SELF), layer, lengths)


@pytest.mark.slow
def test_on_a_grid_it_convolves_rows_and_columns_and_adds_positions() -> None:
    layers = stack(partial(FLatten, kernel=3), Pattern.SELF, grid=(6, 7), query_len=42, context_len=42)
    for attention in layers:
        torch.nn.init.normal_(attention.positions)
    agree(layers, partial(layer, width=7), "37")


@pytest.mark.parametrize("size", [1e2, 1e-12])
def test_half_precision_holds_large_values_and_features_without_a_sign(size: float) -> None:
    """Sums over the tokens exceed its range, and so do the third powers of features."""
    attention = one(FLatten, dim=64).float()
    x = size * tokens(1, LONGEST, 64).float()
    with torch.autocast("cpu", torch.float16):
        y = attention(x, x, Masks())[0]
    assert_close(y.float() / y.float().norm(), attention(x) / attention(x).norm(), rtol=0.02, atol=1e-3)
