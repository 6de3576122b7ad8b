"""PixelFly's attention against softmax under its own dense mask, and what a butterfly reaches."""

from functools import partial

import pytest
import torch
from reference import pixelfly as reference
from torch import Tensor
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.pixelfly import PixelFly
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    ("block", "factors", "global_blocks"), [(1, 3, 2), (3, 2, 1), (4, 9, 0), (5, 0, 1), (40, 1, 1)]
)
def test_equals_softmax_under_its_mask(block: int, factors: int, global_blocks: int, lengths: str) -> None:
    choices = {"block": block, "factors": factors, "global_blocks": global_blocks}
    agree(stack(partial(PixelFly, **choices), Pattern.SELF), partial(reference.layer, heads=HEADS, **choices), lengths)


@pytest.mark.parametrize(("block", "factors", "global_blocks"), [(LONGEST, 0, 0), (19, 1, 0), (5, 0, 8)])
def test_a_pattern_that_holds_everything_is_softmax(block: int, factors: int, global_blocks: int) -> None:
    layer = one(partial(PixelFly, block=block, factors=factors, global_blocks=global_blocks))
    softmax, x = one(Softmax), tokens(2, LONGEST, 24)
    softmax.load_state_dict(layer.state_dict())
    assert_close(layer(x, x, Masks())[0], softmax(x, x, Masks())[0])


def reach(factors: int, hops: int) -> Tensor:
    """Which of 32 tokens, one in each block, influence which outputs after some layers without global blocks."""
    places = partial(PixelFly, block=1, factors=factors, global_blocks=0)
    layers = stack(places, Pattern.SELF, layers=hops)

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = x + layer(x[None], x[None], Masks())[0][0]
        return x.sum(-1)

    return torch.autograd.functional.jacobian(run, tokens(32, 24)).abs().sum(-1) > 0


@pytest.mark.parametrize("factors", [1, 2, 3, 4, 5])
def test_a_row_of_blocks_holds_one_more_than_the_factors(factors: int) -> None:
    reached = reach(factors, 1)
    assert (reached.sum(0) == factors + 1).all()
    assert (reached.sum(1) == factors + 1).all()


def test_as_many_hops_as_factors_reach_everything() -> None:
    """The factors are log2 of the number of blocks; two hops do not suffice, and one factor less never does."""
    assert reach(factors=5, hops=5).all()
    assert not reach(factors=5, hops=2).all()
    assert not reach(factors=4, hops=5).all()
