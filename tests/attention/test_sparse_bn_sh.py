"""Sparse Attention-BN, -SH and -BN+SH against logits that are masked one by one."""

import copy
from functools import partial

import pytest
import torch
from reference.sparse_bn_sh import allowed
from torch.testing import assert_close

from attention.cells import prefix, site
from attention.checks import LENGTHS, LONGEST, agree, by_scaled_head, one, stack, tokens
from subquad.attention.attention_sh import AttentionSH
from subquad.attention.sparse import Sparse
from subquad.attention.sparse_bn_sh import SparseBNSH, naive_sparse_bn_sh
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

WHOLE = [1, 1, 1, 1]
CHOICES = {
    "band of 2": {"form": "band", "window": 2},
    "band of 16": {"form": "band", "window": 16},
    "fixed, 8 and 1": {"form": "fixed", "block": 8, "summary": 1},
    "fixed, 6 and 2": {"form": "fixed", "block": 6, "summary": 2},
    "fixed, 4 and 4": {"form": "fixed", "block": 4, "summary": 4},
    "strided by 8": {"form": "strided", "block": 8},
    "strided by 5": {"form": "strided", "block": 5},
}


def layer(scales: list[int], beta: float | None = 1.0, **sizes):
    """The naive layer with the pattern of `sizes`."""

    def head(q, context, key, value, scale, beta):
        return naive_sparse_bn_sh(q, context, key, value, allowed(len(q), scale, **sizes), scale, beta)

    return by_scaled_head(head, scales, beta)


choices = pytest.mark.parametrize("sizes", CHOICES.values(), ids=CHOICES)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("beta", [0.0, 0.7])
@choices
@pytest.mark.parametrize("scales", [WHOLE, pytest.param([1, 1, 2, 4], marks=pytest.mark.slow), [3, 1, 1, 8]], ids=str)
def test_equals_the_printed_form(scales: list[int], sizes: dict, beta: float, lengths: str) -> None:
    layers = stack(partial(SparseBNSH, scales=scales, beta=beta, **sizes), Pattern.SELF)
    agree(layers, layer(scales, beta, **sizes), lengths)


@choices
def test_learned_weight_of_the_mean(sizes: dict) -> None:
    factory = partial(SparseBNSH, beta=0.0, learned=True, **sizes)
    layers = stack(factory, Pattern.SELF)
    assert dict(factory(site=layers[0].site).named_parameters())["beta"] == torch.tensor([0.0])
    agree(layers, layer([1, 1, 2, 4], None, **sizes), "padded")


def test_default_scales_weight_and_pattern() -> None:
    layers = stack(partial(SparseBNSH, block=8, summary=1), Pattern.SELF)
    agree(layers, layer([1, 1, 2, 4], **CHOICES["fixed, 8 and 1"]), "37")


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["band of 16", "fixed, 8 and 1", "strided by 8"])
def test_where_the_scale_divides_the_block_a_window_is_seen_if_the_pattern_shows_a_token_of_it(
    name: str, scale: int
) -> None:
    """Shows it to a query of the query's own window."""
    sizes = CHOICES[name]
    tokens_seen = allowed(40, 1, **sizes)
    of_windows = tokens_seen.unflatten(0, (-1, scale)).any(1).unflatten(1, (-1, scale)).any(-1)
    assert torch.equal(allowed(40, scale, **sizes), of_windows.repeat_interleave(scale, 0))


@pytest.mark.parametrize("form", ["fixed", "strided"])
def test_without_mean_and_scales_it_is_the_sparse_transformer(form: str) -> None:
    attention, x = one(partial(SparseBNSH, form=form, block=6, summary=2, scales=1, beta=0.0)), tokens(2, LONGEST, 24)
    sparse = Sparse(attention.site, form=form, block=6, summary=2).double()
    sparse.load_state_dict(attention.state_dict())
    assert_close(attention(x, x, Masks())[0], sparse(x, x, Masks())[0])


@pytest.mark.parametrize("form", ["fixed", "strided", "band"])
@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("scales", [1, None])
def test_a_pattern_that_shows_all_tokens_is_none(scales: int | None, beta: float, form: str) -> None:
    whole = {"form": form, "block": 40, "window": 2 * LONGEST}
    attention, x = one(partial(SparseBNSH, scales=scales, beta=beta, **whole)), tokens(2, LONGEST, 24)
    dense = AttentionSH(attention.site, scales=scales, beta=beta).double()
    dense.load_state_dict(attention.state_dict())
    assert_close(attention(x, x, Masks())[0], dense(x, x, Masks())[0])


@pytest.mark.parametrize("name", ["band of 2", "fixed, 8 and 1"])
def test_tokens_outside_the_pattern_act_through_the_mean_only(name: str) -> None:
    """The first queries do not see the last token; it influences them only through μ."""
    x = tokens(1, LONGEST, 24)
    changed = torch.cat([x[:, :-1], x[:, -1:] + 1], 1)
    for beta, moves in ((0.0, False), (1.0, True)):
        attention = one(partial(SparseBNSH, scales=1, beta=beta, **CHOICES[name]))
        y, other = (attention(t, t, Masks())[0] for t in (x, changed))
        assert torch.equal(y[:, :20], other[:, :20]) is not moves
        assert not torch.allclose(y[:, -3:], other[:, -3:])


@choices
def test_appended_padding_changes_nothing(sizes: dict) -> None:
    attention, x = one(partial(SparseBNSH, **sizes)), tokens(2, 9, 24)
    longer, mask = torch.cat([x, 1e3 * tokens(2, 28, 24)], 1), prefix([9, 9], LONGEST)
    assert_close(attention(longer, longer, Masks(mask, mask))[0][:, :9], attention(x, x, Masks())[0])


@choices
def test_dropout_acts_on_the_weights(sizes: dict) -> None:
    attention, x = one(partial(SparseBNSH, **sizes), dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0])


@pytest.mark.parametrize("window", [0, -2, 5])
def test_windows_without_two_equal_sides_are_refused(window: int) -> None:
    with pytest.raises(UserError, match=f"attention.window is {window}; choose an even number"):
        SparseBNSH(site(Pattern.SELF), form="band", window=window)


def test_more_summaries_than_tokens_of_a_block_are_refused() -> None:
    with pytest.raises(UserError, match=r"attention\.summary is 9; blocks of 8 tokens"):
        SparseBNSH(site(Pattern.SELF), block=8, summary=9)
