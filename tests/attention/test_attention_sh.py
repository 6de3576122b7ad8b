"""Attention-SH and Attention-BN+SH against their printed forms, and what scales leave unchanged."""

import copy
import re
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from attention.cells import prefix, site
from attention.checks import LENGTHS, agree, by_scaled_head, one, stack, tokens
from subquad.attention.attention_bn import AttentionBN
from subquad.attention.attention_sh import AttentionSH, naive_attention_sh
from subquad.attention.softmax import Softmax
from subquad.ops.masks import masked_mean
from subquad.ops.pooling import mean_pool
from subquad.ops.scaled_heads import at_scales, mean_keys, scale_groups
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

SCALES = [[1, 1, 2, 4], [3, 1, 1, 8], [5, 2, 5, 1]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_equals_the_printed_form(scales: list[int], beta: float, pattern: Pattern, lengths: str) -> None:
    layers = stack(partial(AttentionSH, scales=scales, beta=beta), pattern)
    agree(layers, by_scaled_head(naive_attention_sh, scales, beta), lengths)


@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("start", [0.0, 0.3])
def test_learned_weight_of_the_mean(start: float, pattern: Pattern) -> None:
    factory = partial(AttentionSH, scales=[1, 1, 2, 4], beta=start, learned=True)
    layers = stack(factory, pattern)
    assert dict(factory(site=layers[0].site).named_parameters())["beta"] == torch.tensor([start])
    agree(layers, by_scaled_head(naive_attention_sh, [1, 1, 2, 4], None), "padded")


@pytest.mark.parametrize(("scales", "twin"), [(1, AttentionBN), (None, AttentionSH)])
def test_learned_weight_is_the_set_one_until_it_moves(scales: int | None, twin: type) -> None:
    attention, x = one(partial(AttentionSH, scales=scales, beta=0.7, learned=True)), tokens(2, 13, 24)
    same = {} if scales else {"scales": scales}
    weight = attention.beta.item()
    fixed = twin(attention.site, beta=weight, **same).double()
    fixed.load_state_dict({name: p for name, p in attention.state_dict().items() if name != "beta"})
    assert_close(attention(x, x, Masks()), fixed(x, x, Masks()))


@pytest.mark.parametrize(
    ("heads", "scales"), [(2, [1, 2]), (4, [1, 1, 2, 4]), (8, [1, 1, 2, 2, 4, 4, 8, 8]), (16, [1, 2, 4, 8])]
)
def test_default_scales(heads: int, scales: list[int]) -> None:
    scales = scales if heads < 16 else [s for s in scales for _ in range(4)]
    layers = stack(AttentionSH, Pattern.SELF, dim=48, heads=heads)
    agree(layers, by_scaled_head(naive_attention_sh, scales, 0.0), "13")


def test_order_of_scales_is_the_order_of_heads() -> None:
    attention, x = one(partial(AttentionSH, scales=[1, 1, 2, 4])), tokens(2, 13, 24)
    other = one(partial(AttentionSH, scales=[4, 2, 1, 1]))
    other.load_state_dict(attention.state_dict())
    assert not torch.allclose(other(x, x, Masks())[0], attention(x, x, Masks())[0], atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scales", [1, [1, 1, 1, 1]])
def test_scales_of_one_are_softmax_attention(scales: int | list[int], masked: bool) -> None:
    attention, x = one(partial(AttentionSH, scales=scales)), tokens(3, 13, 24)
    mask = prefix([13, 9, 1], 13) if masked else None
    softmax = Softmax(attention.site).double()
    softmax.load_state_dict(attention.state_dict())
    assert_close(attention(x, x, Masks(mask, mask)), softmax(x, x, Masks(mask, mask)))


def test_scales_of_one_recentred_are_attention_bn() -> None:
    attention, x = one(partial(AttentionSH, scales=1, beta=0.7)), tokens(2, 13, 24)
    bn = AttentionBN(attention.site, beta=0.7).double()
    bn.load_state_dict(attention.state_dict())
    assert_close(attention(x, x, Masks()), bn(x, x, Masks()))


@pytest.mark.parametrize("scale", [2, 3, 8, 20])
def test_pooling_before_the_projection_is_pooling_after_it(scale: int) -> None:
    key, x, mask = one(AttentionSH).projections.key, tokens(3, 13, 24), prefix([13, 9, 1], 13)
    for visible in (None, mask):
        before, real = mean_pool(x, visible, scale)
        after, _ = mean_pool(key(x), visible, scale)
        there = real.expand(3, -1)
        assert_close(key(before)[there], after[there])


@pytest.mark.parametrize(("length", "divides"), [(12, True), (13, False)])
def test_mean_of_pooled_keys_is_the_mean_of_keys_where_the_scale_divides_the_length(length: int, divides: bool) -> None:
    key, x = one(AttentionSH).projections.key, tokens(2, length, 24)
    groups = scale_groups(4, 24, 4)
    means = mean_keys(key, at_scales(x, None, groups), groups)
    assert torch.allclose(means, masked_mean(key(x), None)) is divides


def test_heads_of_one_scale_share_the_pooled_context() -> None:
    groups = scale_groups([2, 1, 2, 2], 24, 4)
    assert [(group.scale, group.heads) for group in groups] == [(2, 1), (1, 1), (2, 2)]
    scaled = at_scales(tokens(2, 13, 24), None, groups)
    assert {scale: tuple(x.shape) for scale, (x, _) in scaled.items()} == {1: (2, 13, 24), 2: (2, 7, 24)}


def test_a_scale_beyond_the_length_leaves_one_key() -> None:
    """Seven steps at scale 8: the only key is the mean of all, so every query gets its value."""
    attention, x = one(partial(AttentionSH, scales=8)), tokens(2, 7, 24)
    p = attention.projections
    assert_close(attention(x, x, Masks())[0], p.out(p.value(x.mean(1, keepdim=True))).expand(-1, 7, -1))


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_appended_padding_changes_nothing(beta: float) -> None:
    attention, x = one(partial(AttentionSH, beta=beta)), tokens(2, 9, 24)
    longer, mask = torch.cat([x, 1e3 * tokens(2, 16, 24)], 1), prefix([9, 9], 25)
    assert_close(attention(longer, longer, Masks(mask, mask))[0][:, :9], attention(x, x, Masks())[0])


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(AttentionSH, dropout=0.5), tokens(2, 37, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0])


def test_head_counts_without_default_scales_are_refused() -> None:
    message = (
        "There are no default scales for 3 heads, only for 2, 4, 8, 16; set attention.scales to one number for each"
    )
    with pytest.raises(UserError, match=message):
        AttentionSH(site(Pattern.SELF, heads=3))


@pytest.mark.parametrize("scales", [[1, 2], [1, 1, 1, 1, 1]])
def test_scales_that_do_not_fit_the_heads_are_refused(scales: list[int]) -> None:
    with pytest.raises(UserError, match=re.escape(f"one number for each of the 4 heads; got {scales}.")):
        AttentionSH(site(Pattern.SELF), scales=scales)
