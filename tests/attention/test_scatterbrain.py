"""Scatterbrain against its n x n matrix; softmax and Performer as the limits of its window."""

from functools import partial

import pytest
import torch
from reference import scatterbrain as reference
from reference import softmax as exact
from torch.testing import assert_close

from attention.cells import HEADS, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.base import UnsupportedPattern
from subquad.attention.scatterbrain import Scatterbrain
from subquad.ops.random_features import orthogonal_directions
from subquad.specs import Masks, Pattern


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("window", [0, 1, 4, 7, 40])
def test_equals_the_printed_form(window: int, lengths: str) -> None:
    layers = stack(partial(Scatterbrain, window=window, features=10), Pattern.SELF)
    agree(layers, partial(reference.layer, heads=HEADS, window=window), lengths)


def test_a_window_of_all_is_softmax() -> None:
    attention, x = one(partial(Scatterbrain, window=2 * LONGEST)), tokens(2, LONGEST, 24)
    want = torch.stack([exact.layer(attention, row, row, None, heads=HEADS)[0] for row in x])
    assert_close(attention(x, x, Masks())[0], want)


def test_without_a_window_it_is_performer() -> None:
    attention, x = one(partial(Scatterbrain, window=0)), tokens(2, LONGEST, 24)
    maps, parts = attention.projections, []
    for q, k, v in zip(*(linear(x).chunk(HEADS, 2) for linear in (maps.query, maps.key, maps.value)), strict=True):
        rows = zip(q, k, v, strict=True)
        parts.append(torch.stack([reference.performer(*row, attention.directions) for row in rows]))
    assert_close(attention(x, x, Masks())[0], maps.out(torch.cat(parts, 2)))


def test_values_of_one_give_one() -> None:
    attention, x = one(partial(Scatterbrain, window=4, features=10)), tokens(2, LONGEST, 24)
    with torch.no_grad():
        attention.projections.value.weight.zero_()
        attention.projections.value.bias.fill_(1)
    assert_close(attention(x, x, Masks())[0], attention.projections.out(torch.ones_like(x)))


def test_logits_of_any_size_stay_finite() -> None:
    attention, x = one(partial(Scatterbrain, window=4, features=10)).float(), 100 * tokens(2, LONGEST, 24).float()
    x.requires_grad_()
    y = attention(x, x, Masks())[0]
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_more_features_come_closer_to_softmax() -> None:
    x = tokens(4, LONGEST, 24)
    errors = []
    for features in (4, 4096):
        attention = one(partial(Scatterbrain, window=4, features=features))
        want = torch.stack([exact.layer(attention, row, row, None, heads=HEADS)[0] for row in x])
        errors.append((attention(x, x, Masks())[0] - want).norm() / want.norm())
    assert errors[1] < 0.3 * errors[0]


def test_directions_are_orthogonal_and_as_long_as_gaussian_vectors() -> None:
    rows = orthogonal_directions(6000, 6)
    products = rows[:6] @ rows[:6].T
    assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-5)
    assert_close(rows.mean(0), torch.zeros(6), rtol=0, atol=0.1)
    assert_close(rows.square().mean(0), torch.ones(6), rtol=0, atol=0.1)


def test_dropout_acts_on_the_exact_weights() -> None:
    attention, x = one(partial(Scatterbrain, window=4), dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention.train()(x, x, Masks())[0], attention.eval()(x, x, Masks())[0])


def test_cross_attention_is_refused() -> None:
    with pytest.raises(UnsupportedPattern, match="Scatterbrain has no cross-attention form"):
        Scatterbrain(site(Pattern.CROSS))
