"""Child's patterns against softmax under their own dense masks, and what they reach over two hops."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from reference import pattern
from reference import sparse as reference
from torch import Tensor, nn
from torch.testing import assert_close

from attention.cells import HEADS, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.softmax import Softmax
from subquad.attention.sparse import Sparse
from subquad.ops.heads import split_heads
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

both_forms = pytest.mark.parametrize("form", ["fixed", "strided"])
both_ways = pytest.mark.parametrize("causal", [False, True])


@pytest.mark.parametrize("lengths", LENGTHS)
@both_ways
@both_forms
@pytest.mark.parametrize(("block", "summary"), [(1, 1), (4, 1), (6, 2), (5, 5), (40, 3)])
def test_equals_softmax_under_its_mask(block: int, summary: int, form: str, causal: bool, lengths: str) -> None:
    choices = {"form": form, "block": block, "summary": summary, "causal": causal}
    agree(stack(partial(Sparse, **choices), Pattern.SELF), partial(reference.layer, heads=HEADS, **choices), lengths)


@both_ways
@both_forms
def test_a_block_over_everything_is_softmax(form: str, causal: bool) -> None:
    layer, x = one(partial(Sparse, form=form, block=LONGEST, causal=causal)), tokens(2, LONGEST, 24)
    p = layer.projections
    want = p.merge(F.scaled_dot_product_attention(*p.qkv(x, x), is_causal=causal))
    assert_close(layer(x, x, Masks())[0], want)
    if not causal:
        softmax = one(Softmax)
        softmax.load_state_dict(layer.state_dict())
        assert_close(layer(x, x, Masks())[0], softmax(x, x, Masks())[0])


def grid(sees) -> Tensor:
    """A pattern of the reference as a matrix, whose powers are hops."""
    return pattern.grid(lambda _, i, j: sees(i, j), 1, LONGEST)[0].float()


def test_two_hops_reach_the_causal_triangle() -> None:
    """Fixed: A1 ∪ A2·A1, and not A2·A1 alone; strided: A2·A1."""
    triangle = torch.ones(LONGEST, LONGEST).tril().bool()
    reach = {}
    for form in ("fixed", "strided"):
        a1 = grid(lambda i, j, f=form: j <= i and reference.first_set(i, j, f, 6))
        a2 = grid(lambda i, j, f=form: j <= i and reference.second_set(i, j, f, 6, 2))
        reach[form] = (a1 > 0, a2 @ a1 > 0)
    assert torch.equal(reach["fixed"][0] | reach["fixed"][1], triangle)
    assert not torch.equal(reach["fixed"][1], triangle)
    assert torch.equal(reach["strided"][1], triangle)


def reach(layers: nn.ModuleList, length: int) -> Tensor:
    """Which inputs influence which outputs."""

    def outputs(x: Tensor) -> Tensor:
        for layer in layers:
            x = x + layer(x[None], x[None], Masks())[0][0]
        return x.sum(-1)

    return torch.autograd.functional.jacobian(outputs, tokens(length, 24)).abs().sum(-1) > 0


@both_ways
@both_forms
def test_two_layers_reach_all_that_they_may(form: str, causal: bool) -> None:
    layers = stack(partial(Sparse, form=form, block=6, summary=2, causal=causal), Pattern.SELF)
    allowed = torch.ones(36, 36).bool()
    allowed = allowed.tril() if causal else allowed
    assert torch.equal(reach(layers, 36), allowed)
    assert not torch.equal(reach(layers[:1], 36), allowed)


def test_an_unfinished_block_has_no_summary_yet() -> None:
    """Token 36 is alone in the seventh block, at whose end the summaries would be: only itself reads it."""
    reached = reach(stack(partial(Sparse, block=6, summary=2), Pattern.SELF), LONGEST)
    assert reached[:, 36].nonzero().flatten().tolist() == [36]
    assert reached[:, :36].all()


def test_weights_are_dropped_in_the_written_out_form_too() -> None:
    """With values of 1 an output is the sum of the weights: 1 in evaluation, scattered around 1 in training."""
    for form in ("fixed", "strided"):
        layer, x = one(partial(Sparse, form=form, block=6, summary=2), dropout=0.5), tokens(2, LONGEST, 24)
        with torch.no_grad():
            layer.projections.value.weight.zero_()
            layer.projections.value.bias.fill_(1)
            layer.projections.out.weight.copy_(torch.eye(24))
            layer.projections.out.bias.zero_()
            y = split_heads(layer(x, x, Masks())[0], HEADS)
        assert y.std() > 0.1
        assert abs(y.mean() - 1) < 0.2
        assert_close(layer.eval()(x, x, Masks())[0], torch.ones_like(x))


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(UserError, match=r"attention\.summary is 5; blocks of 4 tokens have from 1 to 4 summaries"):
        Sparse(site(Pattern.SELF), block=4, summary=5)


def test_the_strided_form_has_no_summaries_to_refuse() -> None:
    assert Sparse(site(Pattern.SELF), form="strided", block=4).block == 4
