"""Longformer against softmax under its own dense mask, with second maps for global tokens."""

from functools import partial

import pytest
import torch
from reference import longformer as reference
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.local import Local
from subquad.attention.longformer import Longformer
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("global_tokens", [0, 1, 5])
@pytest.mark.parametrize("window", [0, 4, 9])
def test_equals_softmax_under_its_mask(window: int, global_tokens: int, lengths: str) -> None:
    choices = {"window": window, "global_tokens": global_tokens}
    layer = partial(reference.layer, heads=HEADS, **choices)
    agree(stack(partial(Longformer, **choices), Pattern.SELF), layer, lengths)


def test_a_window_over_everything_is_softmax() -> None:
    layer, softmax = one(partial(Longformer, window=2 * LONGEST, global_tokens=0)), one(Softmax)
    softmax.load_state_dict(layer.state_dict())
    x = tokens(2, LONGEST, 24)
    assert_close(layer(x, x, Masks())[0], softmax(x, x, Masks())[0])


def test_without_global_tokens_it_is_local() -> None:
    layer, local = one(partial(Longformer, window=4, global_tokens=0)), one(partial(Local, window=4))
    local.load_state_dict(layer.state_dict())
    x = tokens(2, LONGEST, 24)
    assert_close(layer(x, x, Masks())[0], local(x, x, Masks())[0])


def test_all_tokens_global_is_softmax_with_the_global_maps() -> None:
    layer, softmax = one(partial(Longformer, window=4, global_tokens=LONGEST)), one(Softmax)
    maps = softmax.projections
    with torch.no_grad():
        for mine, of_layer in (
            (maps.query, layer.global_query),
            (maps.key, layer.global_key),
            (maps.value, layer.global_value),
            (maps.out, layer.projections.out),
        ):
            mine.weight.copy_(of_layer.weight)
            if of_layer.bias is not None:
                mine.bias.copy_(of_layer.bias)
    x = tokens(2, LONGEST, 24)
    assert_close(layer(x, x, Masks())[0], softmax(x, x, Masks())[0])
