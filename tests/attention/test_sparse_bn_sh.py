"""Sparse Attention-BN, -SH and -BN+SH against logits that are masked one by one."""

import copy
from functools import partial

import pytest
import torch
from reference import sparse_bn_sh as reference
from torch.testing import assert_close

from attention.cells import prefix, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.attention_sh import AttentionSH
from subquad.attention.sparse_bn_sh import SparseBNSH
from subquad.errors import UserError
from subquad.specs import Masks, Pattern

WHOLE = [1, 1, 1, 1]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("window", [2, 4, 16])
@pytest.mark.parametrize("scales", [WHOLE, [1, 1, 2, 4], [3, 1, 1, 8]], ids=str)
def test_equals_the_printed_form(scales: list[int], window: int, beta: float, lengths: str) -> None:
    layers = stack(partial(SparseBNSH, window=window, scales=scales, beta=beta), Pattern.SELF)
    agree(layers, partial(reference.layer, scales=scales, window=window, beta=beta), lengths)


def test_customary_scales_and_weight() -> None:
    layers = stack(partial(SparseBNSH, window=8), Pattern.SELF)
    agree(layers, partial(reference.layer, scales=[1, 1, 2, 4], window=8), "37")


@pytest.mark.parametrize("scale", [1, 2, 4])
def test_where_the_scale_divides_half_the_window_a_window_is_seen_by_queries_near_one_of_its_tokens(scale: int) -> None:
    places = torch.arange(40)
    near = (places[:, None] - places).abs() <= 4
    assert torch.equal(reference.allowed(40, 8, scale), near.unflatten(1, (-1, scale)).any(-1))


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("scales", [1, None])
def test_a_band_over_all_tokens_is_no_band(scales: int | None, beta: float) -> None:
    attention, x = one(partial(SparseBNSH, window=2 * LONGEST, scales=scales, beta=beta)), tokens(2, LONGEST, 24)
    dense = AttentionSH(attention.site, scales=scales, beta=beta).double()
    dense.load_state_dict(attention.state_dict())
    assert_close(attention(x, x, Masks())[0], dense(x, x, Masks())[0])


def test_tokens_outside_the_band_act_through_the_mean_only() -> None:
    """The last token is not seen by the first queries; it moves them where μ counts."""
    x = tokens(1, LONGEST, 24)
    changed = torch.cat([x[:, :-1], x[:, -1:] + 1], 1)
    for beta, moves in ((0.0, False), (1.0, True)):
        attention = one(partial(SparseBNSH, window=4, scales=1, beta=beta))
        y, other = (attention(t, t, Masks())[0] for t in (x, changed))
        assert torch.equal(y[:, :20], other[:, :20]) is not moves
        assert not torch.allclose(y[:, -3:], other[:, -3:])


def test_appended_padding_changes_nothing() -> None:
    attention, x = one(partial(SparseBNSH, window=4)), tokens(2, 9, 24)
    longer, mask = torch.cat([x, 1e3 * tokens(2, 28, 24)], 1), prefix([9, 9], LONGEST)
    assert_close(attention(longer, longer, Masks(mask, mask))[0][:, :9], attention(x, x, Masks())[0])


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(partial(SparseBNSH, window=4), dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0])


@pytest.mark.parametrize("window", [0, -2, 5])
def test_windows_without_two_equal_sides_are_refused(window: int) -> None:
    with pytest.raises(UserError, match=f"window of {window} .* even attention.window"):
        SparseBNSH(site(Pattern.SELF), window=window)
