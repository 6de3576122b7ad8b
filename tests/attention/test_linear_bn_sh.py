"""Linear Attention-BN, -SH and -BN+SH against the explicit matrix of similarities."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from attention.cells import prefix
from attention.checks import LENGTHS, agree, by_scaled_head, one, stack, tokens
from subquad.attention.linear import Linear
from subquad.attention.linear_bn_sh import LinearBNSH, naive_linear_bn_sh
from subquad.specs import Masks, Pattern

WHOLE = [1, 1, 1, 1]


def layer(scales: list[int], beta: float | None = 1.0, **choices):
    return by_scaled_head(partial(naive_linear_bn_sh, **choices), scales, beta)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("scales", [WHOLE, [1, 1, 2, 4], [3, 1, 1, 8]], ids=str)
def test_equals_the_printed_form(scales: list[int], beta: float, pattern: Pattern, lengths: str) -> None:
    layers = stack(partial(LinearBNSH, scales=scales, beta=beta), pattern)
    agree(layers, layer(scales, beta), lengths)


def test_default_scales_and_weight() -> None:
    agree(stack(LinearBNSH, Pattern.SELF), layer([1, 1, 2, 4]), "37")


@pytest.mark.parametrize("pattern", Pattern)
def test_learned_weight_of_the_mean(pattern: Pattern) -> None:
    factory = partial(LinearBNSH, beta=0.3, learned=True)
    layers = stack(factory, pattern)
    assert dict(factory(site=layers[0].site).named_parameters())["beta"] == torch.tensor([0.3])
    agree(layers, layer([1, 1, 2, 4], None), "padded")


def test_epsilon_is_added_to_the_normaliser() -> None:
    layers = stack(partial(LinearBNSH, eps=0.1), Pattern.SELF)
    agree(layers, layer([1, 1, 2, 4], eps=0.1), "padded")


def test_centring_only_the_queries_is_another_function() -> None:
    """Unlike in softmax attention, the keys must be centred too."""
    attention, x = one(partial(LinearBNSH, scales=1)), tokens(1, 13, 24)
    y, _ = attention(x, x, Masks())
    both, _ = layer(WHOLE)(attention, x[0], x[0], None)
    queries, _ = layer(WHOLE, centre_keys=False)(attention, x[0], x[0], None)
    assert_close(y[0], both)
    assert not torch.allclose(y[0], queries, atol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
def test_without_mean_and_scales_it_is_linear_attention(masked: bool) -> None:
    attention, x = one(partial(LinearBNSH, beta=0.0, scales=1)), tokens(3, 13, 24)
    mask = prefix([13, 9, 1], 13) if masked else None
    linear = Linear(attention.site).double()
    linear.load_state_dict(attention.state_dict())
    assert_close(attention(x, x, Masks(mask, mask))[0], linear(x, x, Masks(mask, mask))[0])


def test_keys_that_do_not_differ_are_as_in_linear_attention() -> None:
    attention = one(partial(LinearBNSH, scales=1, eps=0.0), Pattern.CROSS)
    x, context = tokens(2, 9, 24), tokens(2, 1, 24).expand(-1, 13, -1)
    p = attention.projections
    assert_close(attention(x, context, Masks())[0], p.out(p.value(context[:, :1])).expand(-1, 9, -1))


def test_queries_and_keys_may_be_shifted_together() -> None:
    attention, x = one(LinearBNSH), tokens(2, 13, 24)
    y, _ = attention(x, x, Masks())
    with torch.no_grad():
        shift = torch.randn(24)
        attention.projections.query.bias += shift
        attention.projections.key.bias += shift
    assert_close(attention(x, x, Masks())[0], y)


def test_appended_padding_changes_nothing() -> None:
    attention, x = one(LinearBNSH), tokens(2, 9, 24)
    longer, mask = torch.cat([x, 1e3 * tokens(2, 16, 24)], 1), prefix([9, 9], 25)
    assert_close(attention(longer, longer, Masks(mask, mask))[0][:, :9], attention(x, x, Masks())[0])
