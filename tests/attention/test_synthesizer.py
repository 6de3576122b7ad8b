"""Synthesizer against logits written out as matrices."""

import copy
from functools import partial

import pytest
import torch
from reference import synthesizer as reference
from torch import nn
from torch.testing import assert_close

from attention.cells import HEADS, prefix, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.softmax import Softmax
from subquad.attention.synthesizer import Synthesizer
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

SUMS = [
    ["random"],
    ["fixed"],
    ["factorized_random"],
    ["dense"],
    ["factorized_dense"],
    ["dot"],
    ["random", "fixed"],
    ["random", "dot"],
    ["dense", "dot"],
    ["random", "factorized_dense"],
    ["dense", "factorized_dense", "random", "fixed", "factorized_random", "dot"],
]
each_sum = pytest.mark.parametrize("parts", SUMS, ids="+".join)
both_patterns = pytest.mark.parametrize("pattern", Pattern)


@pytest.mark.parametrize("lengths", LENGTHS)
@both_patterns
@each_sum
def test_equals_the_printed_form(parts: list[str], pattern: Pattern, lengths: str) -> None:
    layers = stack(partial(Synthesizer, parts=parts, rank=3), pattern)
    agree(layers, partial(reference.layer, parts=parts, heads=HEADS), lengths)


@both_patterns
def test_the_dot_product_alone_is_softmax_attention(pattern: Pattern) -> None:
    attention, exact = one(partial(Synthesizer, parts=["dot"]), pattern), one(Softmax, pattern)
    exact.projections.load_state_dict(attention.state_dict())
    context = tokens(3, 13, 24)
    x = context if pattern is Pattern.SELF else tokens(3, 7, 24)
    assert_close(attention(x, context, Masks())[0], exact(x, context, Masks())[0])


class Place(nn.Module):
    """A value map that marks one place of the context."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        marked = torch.zeros_like(context)
        marked[:, self.place] = 1
        return marked


def weights(attention: Synthesizer, x: torch.Tensor) -> torch.Tensor:
    """The weight of each place in each head, [b, h, n, m]."""
    marking = copy.deepcopy(attention)
    columns: list[torch.Tensor] = []
    marking.add_module("out", nn.Identity())
    for place in range(x.shape[1]):
        marking.add_module("value", Place(place))
        columns.append(marking(x, x, Masks())[0][..., :: attention.site.dim // HEADS])
    return torch.stack(columns, -1).transpose(1, 2)


@pytest.mark.parametrize(("parts", "same"), [(p, not {"dot", "dense", "factorized_dense"} & {*p}) for p in SUMS])
def test_weights_of_random_logits_do_not_depend_on_the_input(parts: list[str], same: bool) -> None:
    attention = one(partial(Synthesizer, parts=parts, rank=3))
    first, second = (weights(attention, x) for x in (tokens(2, 13, 24), tokens(2, 13, 24)))
    assert_close(first.sum(-1), torch.ones_like(first[..., 0]))
    assert torch.allclose(first, second) == same


def test_factorized_logits_have_the_rank() -> None:
    attention = one(partial(Synthesizer, parts=["factorized_random"], rank=3))
    x = tokens(1, LONGEST, 24)
    # The logarithm of a softmax is the logits minus a number for each row: rank 3, or 4.
    assert torch.linalg.matrix_rank(weights(attention, x).log(), rtol=1e-9).max() == 4
    centred = weights(attention, x).log()
    assert torch.linalg.matrix_rank(centred - centred.mean(-1, keepdim=True), rtol=1e-9).tolist() == [[3] * HEADS]


def test_a_shorter_input_uses_the_first_places() -> None:
    attention, x = one(partial(Synthesizer, parts=["random"])), tokens(1, 5, 24)
    assert_close(weights(attention, x)[0], attention.random[:, :5, :5].softmax(-1))


def test_fixed_logits_are_no_parameter() -> None:
    attention = one(partial(Synthesizer, parts=["fixed"]))
    assert [name for name, _ in attention.named_parameters()] == [
        "value.weight",
        "value.bias",
        "out.weight",
        "out.bias",
    ]
    assert attention.fixed.std() == pytest.approx(1, abs=0.05)


def test_factorized_random_logits_start_with_variance_1() -> None:
    attention = Synthesizer(site(Pattern.SELF, query_len=200, context_len=200), ["factorized_random"], rank=8)
    assert (attention.rows @ attention.row_keys.mT).std().item() == pytest.approx(1, abs=0.1)


def test_factors_cover_every_place() -> None:
    for m in (1, 2, 3, 12, 13, 37):
        attention = Synthesizer(site(Pattern.SELF, query_len=m, context_len=m), ["factorized_dense"])
        a, b = attention.factors
        assert m <= a * b < m + a + b


@pytest.mark.parametrize("parts", [["random"], ["dense"], ["factorized_dense"], ["random", "dot"]], ids="+".join)
def test_no_real_token_to_read_gives_the_output_bias(parts: list[str]) -> None:
    attention = one(partial(Synthesizer, parts=parts), Pattern.CROSS)
    nothing = Masks(context=prefix([0, 5], 5))
    y, _ = attention(tokens(2, 3, 24), tokens(2, 5, 24), nothing)
    assert_close(y[0], attention.out.bias.expand(3, -1))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("parts", [["random"], ["dense"], ["factorized_dense"], ["random", "dot"]], ids="+".join)
def test_dropout_keeps_the_mean(parts: list[str], padded: bool) -> None:
    attention = one(partial(Synthesizer, parts=parts), dropout=0.4)
    times, rows = (1000, 1) if "random" in parts else (1, 1000)  # random weights are dropped for all rows alike
    exact, x = copy.deepcopy(attention).eval(), tokens(1, 5, 24).expand(rows, -1, -1)
    masks = Masks(*(prefix([4] * rows, 5),) * 2) if padded else Masks()
    draws = torch.cat([attention(x, x, masks)[0][:, :4] for _ in range(times)])
    assert not torch.equal(draws[0], draws[1])
    assert_close(draws.mean(0), exact(x, x, masks)[0][0, :4], rtol=0, atol=0.06)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"parts": []}, r"attention\.parts is \[\]; Synthesizer needs different parts"),
        ({"parts": ["random", "random"]}, "different parts"),
        ({"parts": ["random", "vanilla"]}, r"attention\.parts is .*'vanilla'\]; choose a list of \(dense, .* or dot\)"),
    ],
)
def test_impossible_choices_are_refused(choices: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Synthesizer(site(Pattern.SELF), **choices)
