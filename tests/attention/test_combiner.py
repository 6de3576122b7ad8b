"""Combiner against the sets of its definition; softmax as the limit of large spans and of equal keys in a span."""

from functools import partial

import pytest
import torch
from reference import softmax as exact
from torch.testing import assert_close

from attention.cells import HEADS, site
from attention.checks import LONGEST, agree, by_head, one, stack, tokens
from subquad.attention import combiner
from subquad.attention.base import UnsupportedPattern
from subquad.attention.combiner import Combiner, naive_combiner, naive_spans
from subquad.specs import Masks, Pattern

FACTORIZATIONS = ["fixed", "logn", "axial"]
every_factorization = pytest.mark.parametrize("factorization", FACTORIZATIONS)


def softmax_of(attention: Combiner, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([exact.layer(attention, row, row, None, heads=HEADS)[0] for row in x])


def naive(**choices):
    return by_head(lambda _module, _number, *qkv: naive_combiner(*qkv, **choices), HEADS)


@pytest.mark.parametrize("length", [1, 7, 13])
@every_factorization
def test_tokens_and_spans_hold_each_token_once(factorization: str, length: int) -> None:
    for i in range(length):
        direct, spans = naive_spans(i, length, factorization, 3)
        assert sorted([*direct, *(j for part in spans for j in part)]) == list(range(length))


@pytest.mark.parametrize(("span", "lengths"), [(3, "padded"), (3, "short"), (1, "13"), (8, "13")])
@every_factorization
def test_equals_the_printed_form(factorization: str, span: int, lengths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combiner, "QUERIES", 8)  # several blocks of queries in 37 tokens
    choices = {"factorization": factorization, "span": span}
    layers = stack(partial(Combiner, **choices), Pattern.SELF)
    agree(layers, naive(**choices), lengths)


@pytest.mark.slow
@pytest.mark.parametrize("choices", [{"pooling": "mean"}, {"size_offset": True}], ids=str)
@every_factorization
def test_choices_equal_the_printed_form(factorization: str, choices: dict) -> None:
    choices = {"factorization": factorization, "span": 4, **choices}
    layers = stack(partial(Combiner, **choices), Pattern.SELF)
    agree(layers, naive(**choices), "padded")


@every_factorization
def test_a_span_of_all_is_softmax(factorization: str) -> None:
    attention, x = one(partial(Combiner, factorization=factorization, span=LONGEST)), tokens(2, LONGEST, 24)
    assert_close(attention(x, x, Masks())[0], softmax_of(attention, x))


@pytest.mark.parametrize("pooling", ["max", "mean"])
@every_factorization
def test_equal_keys_in_each_span_are_softmax_with_the_offset_only(factorization: str, pooling: str) -> None:
    """Keys that are all equal; in fixed spans also keys that differ from span to span."""
    choices = {"factorization": factorization, "span": 4, "pooling": pooling}
    attention, x = one(partial(Combiner, **choices, size_offset=True)), tokens(2, LONGEST, 24)
    with torch.no_grad():
        if factorization == "fixed":
            spans = x[:, ::4].repeat_interleave(4, 1)[:, :LONGEST] @ attention.projections.key.weight.T
            attention.projections.key.register_forward_hook(
                lambda module, inputs, output: spans if output.ndim == 3 else spans[0]
            )
        else:
            attention.projections.key.weight.zero_()
        with_offset, want = attention(x, x, Masks())[0], softmax_of(attention, x[:1])
        attention.size_offset = False
        without = attention(x, x, Masks())[0]
    assert_close(with_offset[:1], want)
    assert (without[:1] - want).abs().max() > 1e-2


@every_factorization
def test_every_token_is_read(factorization: str) -> None:
    attention, x = one(partial(Combiner, factorization=factorization, span=4)), tokens(1, LONGEST, 24)
    x.requires_grad_()
    grads = torch.autograd.grad(attention(x, x, Masks())[0][0, 20].sum(), x)[0]
    assert (grads.abs().amax(-1) > 0).all()


@pytest.mark.parametrize(
    ("factorization", "grid", "span"),
    [("fixed", None, 7), ("logn", None, 2), ("axial", None, 7), ("axial", (4, 9), 9), ("fixed", (4, 9), 7)],
)
def test_spans_are_chosen_from_the_longest_sequence(factorization: str, grid: tuple | None, span: int) -> None:
    attention = one(partial(Combiner, factorization=factorization), grid=grid)
    x = tokens(2, 20, 24)
    set_by_hand = one(partial(Combiner, factorization=factorization, span=span))
    set_by_hand.load_state_dict(attention.state_dict())
    assert_close(attention(x, x, Masks())[0], set_by_hand(x, x, Masks())[0])


@every_factorization
def test_dropout_acts_on_the_weights(factorization: str) -> None:
    attention, x = one(partial(Combiner, factorization=factorization), dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention.train()(x, x, Masks())[0], attention.eval()(x, x, Masks())[0])


def test_cross_attention_is_refused() -> None:
    with pytest.raises(UnsupportedPattern, match="Combiner has no cross-attention form"):
        Combiner(site(Pattern.CROSS))
