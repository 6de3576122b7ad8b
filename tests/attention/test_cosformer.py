"""cosFormer against the explicit matrix of weights."""

from functools import partial

import pytest
import torch
from reference import cosformer as reference
from torch import Tensor
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.cosformer import CosFormer
from subquad.specs import Masks, Pattern

layer = partial(reference.layer, heads=HEADS, longest=LONGEST)


def with_values(value: float) -> CosFormer:
    """An attention whose values are all `value`, with the identity as the output map."""
    attention = one(CosFormer)
    with torch.no_grad():
        attention.projections.value.weight.zero_()
        attention.projections.value.bias.fill_(value)
        attention.projections.out.weight.copy_(torch.eye(24))
        attention.projections.out.bias.zero_()
    return attention


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
def test_equals_the_printed_form(pattern: Pattern, lengths: str) -> None:
    agree(stack(CosFormer, pattern), layer, lengths)


def test_distances_are_shares_of_the_longest_side() -> None:
    layers = stack(CosFormer, Pattern.CROSS, query_len=LONGEST, context_len=64)
    agree(layers, partial(layer, longest=64), "padded")


def test_small_sums_count_as_eps() -> None:
    agree(stack(partial(CosFormer, eps=50.0), Pattern.SELF), partial(layer, eps=50.0), "padded")


def test_values_of_one_give_one() -> None:
    attention, x = with_values(1), tokens(2, LONGEST, 24)
    with torch.no_grad():  # no query and no key is without features
        attention.projections.query.bias.fill_(9)
        attention.projections.key.bias.fill_(9)
    assert_close(attention(x, x, Masks())[0], torch.ones_like(x))


def test_queries_without_features_read_nothing() -> None:
    attention, x = with_values(1), tokens(2, LONGEST, 24)
    with torch.no_grad():
        attention.projections.query.bias.fill_(-99)
    assert_close(attention(x, x, Masks())[0], torch.zeros_like(x), rtol=0, atol=0)


def test_no_weight_is_negative() -> None:
    """The output of token i, when only token j has the value 1, is the weight w_ij of each head."""
    attention, x = with_values(0), tokens(1, LONGEST, 24)
    attention.projections.value.weight.data.copy_(torch.eye(24))
    attention.projections.value.bias.data.zero_()

    def of(context: Tensor) -> Tensor:
        return attention(x, context, Masks())[0]

    # Queries and keys ignore the marks, which only the values read.
    attention.projections.query.weight.data.zero_()
    attention.projections.key.weight.data.zero_()
    weights = torch.stack(
        [of((torch.arange(LONGEST) == j)[None, :, None] * torch.ones_like(x)) for j in range(LONGEST)]
    )
    assert weights.min() >= 0
    assert_close(weights.sum(0), torch.ones_like(x))
    # Nearer keys weigh more: q_i and k_j are constant here, and only the cosine is left.
    assert (weights[:, 0, 0, 0].diff() < 0).all()
