"""BigBird against softmax under its own dense mask, and how its random blocks are drawn."""

from functools import partial

import pytest
import torch
from reference import bigbird as reference
from torch.testing import assert_close

from attention.cells import HEADS, prefix, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.bigbird import BigBird
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("block", "random_blocks"), [(1, 0), (2, 3), (3, 2), (4, 9), (40, 1)])
def test_equals_softmax_under_its_mask(block: int, random_blocks: int, lengths: str) -> None:
    layers = stack(partial(BigBird, block=block, random_blocks=random_blocks), Pattern.SELF)
    agree(layers, partial(reference.layer, heads=HEADS, block=block), lengths)


@pytest.mark.parametrize(("block", "random_blocks"), [(LONGEST, 3), (13, 0), (2, 19)])
def test_a_pattern_that_holds_everything_is_softmax(block: int, random_blocks: int) -> None:
    """With one block, with three blocks, and with as many random blocks as exist."""
    layer, softmax = one(partial(BigBird, block=block, random_blocks=random_blocks)), one(Softmax)
    softmax.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "random"})
    x = tokens(2, LONGEST, 24)
    assert_close(layer(x, x, Masks())[0], softmax(x, x, Masks())[0])


def test_random_blocks_are_new_blocks() -> None:
    """Not near, not global, none twice; the requested number if available; different in another layer or head."""
    first, second = (BigBird(site(Pattern.SELF, context_len=160, layer=i), block=8) for i in (0, 1))
    assert first.random.shape == (HEADS, 20, 3)
    for of_head in first.random.tolist():
        for a, drawn in enumerate(of_head):
            assert len(set(drawn)) == 3
            assert not {0, 19, a - 1, a, a + 1} & {*drawn}
            assert {*drawn} < {*range(20)}
    assert not torch.equal(first.random, second.random)
    assert not torch.equal(first.random[0], first.random[1])
    assert torch.equal(first.random, BigBird(site(Pattern.SELF, context_len=160), block=8).random)


def test_every_free_block_is_drawn_sometimes() -> None:
    """Also blocks after the first 1024 tokens, which Long Range Arena's code never draws."""
    drawn = BigBird(site(Pattern.SELF, context_len=160, heads=48, dim=48), block=8).random[:, 10]
    assert {*drawn.flatten().tolist()} == {*range(20)} - {0, 9, 10, 11, 19}


def test_too_few_free_blocks_leave_slots_empty() -> None:
    """Of six blocks, 2 is near 1, 2 and 3, and only 4 is neither near nor global."""
    random = BigBird(site(Pattern.SELF, context_len=12), block=2).random
    assert (random[:, 2].sort(-1, descending=True).values == torch.tensor([4, -1, -1])).all()


def test_the_last_block_is_that_of_the_last_real_token() -> None:
    """Token 21 of 22 moves all outputs of its row, though the row is padded to 37."""
    layer, x = one(partial(BigBird, block=3, random_blocks=0)), tokens(1, LONGEST, 24)
    mask, moved = prefix([22], LONGEST), x.clone()
    moved[0, 21] += 1
    changed = (layer(moved, moved, Masks(mask, mask))[0] != layer(x, x, Masks(mask, mask))[0]).any(-1)[0, :22]
    assert changed.all()


def test_evaluation_uses_the_pattern_of_training() -> None:
    layer, x = one(partial(BigBird, block=2)), tokens(2, LONGEST, 24)
    trained = layer(x, x, Masks())[0]
    assert_close(layer.eval()(x, x, Masks())[0], trained, rtol=0, atol=0)
