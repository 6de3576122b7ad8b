"""Performer against the explicit matrix of feature products, and its features against the softmax kernel."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from attention.cells import HEADS, prefix, site
from attention.checks import LENGTHS, LONGEST, agree, by_head, one, stack, tokens
from subquad.attention.performer import FeatureMap, Performer, naive_performer, naive_softmax_features
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern, Site
from subquad.utils.errors import UserError

both_maps = pytest.mark.parametrize("feature_map", ["softmax", "relu"])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@both_maps
def test_equals_the_printed_form(feature_map: FeatureMap, pattern: Pattern, lengths: str) -> None:
    layers = stack(partial(Performer, feature_map=feature_map, features=17), pattern)
    naive = by_head(lambda module, _, *qkv: naive_performer(*qkv, module.directions, feature_map), HEADS)
    agree(layers, naive, lengths)


@both_maps
def test_values_of_one_give_one(feature_map: FeatureMap) -> None:
    attention, x = one(partial(Performer, feature_map=feature_map)), tokens(2, LONGEST, 24)
    with torch.no_grad():
        attention.projections.value.weight.zero_()
        attention.projections.value.bias.fill_(1)
        attention.projections.out.weight.copy_(torch.eye(24))
        attention.projections.out.bias.zero_()
    assert_close(attention(x, x, Masks())[0], torch.ones_like(x))


def test_features_average_to_the_exponential() -> None:
    """Over many draws the inner products of features come near exp(q·k): small norms, or the variance explodes."""
    directions = one(partial(Performer, features=60_000), dim=32).directions
    q, k = (torch.nn.functional.normalize(tokens(20, 8), dim=1) * math.sqrt(8) / 2 for _ in range(2))
    products = naive_softmax_features(q, directions) @ naive_softmax_features(k, directions).T
    assert_close(products, (q @ k.T / math.sqrt(8)).exp(), rtol=0.03, atol=0)


def test_comes_near_softmax_with_many_features() -> None:
    many, exact = one(partial(Performer, features=40_000)), one(Softmax)
    for p in many.parameters():
        if p.ndim == 1:
            torch.nn.init.zeros_(p)
    exact.load_state_dict({name: value for name, value in many.state_dict().items() if name != "directions"})
    x = tokens(2, 13, 24)
    close, wanted = many(x, x, Masks())[0], exact(x, x, Masks())[0]
    assert (close - wanted).norm() < 0.06 * (wanted - wanted.mean(1, keepdim=True)).norm()


def test_large_queries_and_keys_stay_in_range() -> None:
    """The raw features of the keys are far below the range of float32; factors that cancel are removed first."""
    attention = one(Performer, Pattern.CROSS).float()
    x, context = 80 * tokens(2, 5, 24).float(), 80 * tokens(2, LONGEST, 24).float()
    low, high = attention(x, context, Masks())[0], attention.double()(x.double(), context.double(), Masks())[0]
    assert (low - high).norm() < 0.05 * (high - attention.projections.out.bias).norm()


def test_padding_and_other_rows_do_not_choose_the_largest_feature() -> None:
    """Features of long keys are tiny; divided by the largest of another row they would all be 0 in float32."""
    attention, x = one(Performer).float(), tokens(2, LONGEST, 24).float()
    x[0, :9] *= 200
    alone = attention(x[:1, :9], x[:1, :9], Masks())[0]
    mask = prefix([9, LONGEST], LONGEST)
    assert_close(attention(x, x, Masks(mask, mask))[0][:1, :9], alone)


def test_directions_are_orthogonal_with_gaussian_norms() -> None:
    directions = one(partial(Performer, features=8 * 500), dim=32).directions
    blocks = directions.unflatten(0, (500, 8))
    gram = blocks @ blocks.mT
    assert_close(gram, torch.diag_embed(gram.diagonal(dim1=1, dim2=2)), rtol=0, atol=1e-4)
    lengths = directions.square().sum(1)  # chi-squared of 8 degrees of freedom: mean 8, variance 16
    assert lengths.mean().item() == pytest.approx(8, abs=0.3)
    assert lengths.var().item() == pytest.approx(16, abs=2)


def test_directions_prefer_no_side() -> None:
    """A plain QR decomposition has columns of a fixed sign; every component must be symmetric."""
    blocks = one(partial(Performer, features=8 * 1000), dim=32).directions.unflatten(0, (1000, 8))
    assert blocks.sign().mean(0).abs().max() < 0.15


def test_default_number_of_features() -> None:
    assert one(Performer, dim=256).features == int(64 * math.log(64)) == 266


def test_redrawn_between_steps_only() -> None:
    attention, x = one(partial(Performer, redraw=10)), tokens(2, LONGEST, 24)
    assert [step for step in range(31) if attention.due(0, step, step)] == [10, 20, 30]
    assert not any(one(partial(Performer, redraw=0)).due(0, step, step) for step in range(31))
    before, y = attention.directions.clone(), attention(x, x, Masks())[0]
    assert torch.equal(attention.directions, before)
    attention.refresh(x, x, Masks())
    assert not torch.isclose(attention.directions, before).any()
    assert not torch.allclose(attention(x, x, Masks())[0], y)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"feature_map": "relu", "eps": 0.0}, r"eps 0\.0; choose a positive one"),
    ],
)
def test_bad_choices_are_refused(choices: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Performer(site(Pattern.SELF), **choices)


@pytest.mark.parametrize("seed", range(4))
def test_large_inputs_have_finite_gradients(seed: int) -> None:
    """Weights of some queries are subnormal there."""
    torch.manual_seed(seed)
    attention = Performer(Site(pattern=Pattern.SELF, dim=64, heads=4, query_len=20, context_len=20))
    x = (30 * torch.randn(4, 20, 64)).requires_grad_()
    y = attention(x, x, Masks())[0]
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
