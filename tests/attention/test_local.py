"""Local attention against softmax under its own dense mask."""

from functools import partial

import pytest
import torch
from reference import local as reference
from torch.testing import assert_close

from attention.cells import HEADS, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.local import Local
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize("window", [1, 5, 12])
def test_equals_softmax_under_its_mask(window: int, blockwise: bool, lengths: str) -> None:
    choices = {"window": window, "blockwise": blockwise}
    agree(stack(partial(Local, **choices), Pattern.SELF), partial(reference.layer, heads=HEADS, **choices), lengths)


@pytest.mark.parametrize(("window", "blockwise"), [(2 * LONGEST - 1, False), (LONGEST, True)])
def test_a_window_over_everything_is_softmax(window: int, blockwise: bool) -> None:
    layer, softmax, x = one(partial(Local, window=window, blockwise=blockwise)), one(Softmax), tokens(2, LONGEST, 24)
    softmax.load_state_dict(layer.state_dict())
    assert_close(layer(x, x, Masks())[0], softmax(x, x, Masks())[0])


@pytest.mark.parametrize("lengths", ["37", "padded"])
def test_a_window_of_nothing_else_returns_the_values(lengths: str) -> None:
    layer, x = one(partial(Local, window=0)), tokens(3, LONGEST, 24)
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS[lengths][0] if lengths == "padded" else [LONGEST] * 3)[:, None]
    p = layer.projections
    assert_close(layer(x, x, Masks(mask, mask))[0][mask], p.out(p.value(x))[mask])


def test_a_block_of_the_long_range_arena_is_strided_and_ours_is_not() -> None:
    """One token moves the outputs of its neighbours, not of those that are b places away."""
    layer, x = one(partial(Local, window=5, blockwise=True)), tokens(1, 30, 24)
    moved = x.clone()
    moved[0, 7] += 1
    changed = (layer(moved, moved, Masks())[0] != layer(x, x, Masks())[0]).any(-1)[0].nonzero().flatten()
    assert changed.tolist() == [5, 6, 7, 8, 9]


def test_blocks_that_hold_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"A window of 0 tokens holds none; choose attention\.window"):
        Local(site(Pattern.SELF), window=0, blockwise=True)
