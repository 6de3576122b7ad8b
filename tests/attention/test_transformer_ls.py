"""Transformer-LS against its printed form, token by token; its parts against softmax and a mean."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from reference import softmax as exact
from reference import transformer_ls as reference
from torch import nn
from torch.testing import assert_close

from attention.cells import HEADS, run, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention import transformer_ls
from subquad.attention.base import UnsupportedPattern
from subquad.attention.transformer_ls import TransformerLS
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

SIZES = [(1, 3), (4, 5), (5, 2), (16, 1), (3, 0), (64, 4)]


@pytest.fixture(params=[8, 64], ids=["small blocks", "one block"])
def _queries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """37 tokens in several blocks of segments, and in one."""
    monkeypatch.setattr(transformer_ls, "QUERIES", request.param)


@pytest.mark.usefixtures("_queries")
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("window", "rank"), SIZES)
def test_equals_the_printed_form(window: int, rank: int, lengths: str) -> None:
    sizes = {"window": window, "rank": rank}
    layers = stack(partial(TransformerLS, **sizes), Pattern.SELF)
    agree(layers, partial(reference.layer, heads=HEADS, **sizes), lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("scores", ["input", "keys"])
@pytest.mark.parametrize("kernel", [1, 5])
def test_choices_equal_the_printed_form(kernel: int, scores: str, lengths: str) -> None:
    choices = {"window": 4, "rank": 3, "scores": scores}
    layers = stack(partial(TransformerLS, kernel=kernel, **choices), Pattern.SELF)
    for layer in layers:
        nn.init.normal_(layer.filters)
    agree(layers, partial(reference.layer, heads=HEADS, **choices), lengths)


@pytest.mark.usefixtures("_queries")
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("window", "rank", "kernel"), [(1, 3, None), (5, 2, 3), (64, 4, None)])
def test_a_class_token_is_kept_apart(window: int, rank: int, kernel: int | None, lengths: str) -> None:
    """In a stack, the first token of the second layer is the output of the first layer for it."""
    sizes = {"window": window, "rank": rank}
    layers = stack(partial(TransformerLS, kernel=kernel, **sizes), Pattern.SELF)
    for layer in layers:
        if kernel:
            nn.init.normal_(layer.filters)
        layer.register_forward_pre_hook(named)
    agree(layers, partial(reference.layer, heads=HEADS, class_token=True, **sizes), lengths)


def named(_: nn.Module, given: tuple) -> tuple:
    """The same call with the first token named as a class token."""
    x, context, masks, carry = given
    return x, context, replace(masks, class_token=True), carry


def test_a_class_token_is_seen_by_every_token_and_sees_every_token() -> None:
    attention, x = one(partial(TransformerLS, window=4, rank=3)), tokens(1, LONGEST, 24)
    for place, moves in ((0, range(LONGEST)), (30, [0])):
        changed = x.clone()
        changed[:, place] += 1
        y, other = (attention(t, t, Masks(class_token=True))[0] for t in (x, changed))
        assert (y != other).any(-1)[0][list(moves)].all()


def test_without_summaries_a_class_token_is_refused() -> None:
    attention, x = one(partial(TransformerLS, rank=0)), tokens(1, LONGEST, 24)
    with pytest.raises(UserError, match=r"attention\.rank=0; set attention\.rank .* backbone\.pooling"):
        attention(x, x, Masks(class_token=True))


def test_without_summaries_a_window_of_all_is_softmax_of_normalised_keys_and_values() -> None:
    attention, x = one(partial(TransformerLS, window=LONGEST, rank=0)), tokens(2, LONGEST, 24)
    got = attention(x, x, Masks())[0]
    maps = attention.projections
    for name in ("key", "value"):
        maps.add_module(name, nn.Sequential(getattr(maps, name), attention.norm_tokens))
    want = torch.stack([exact.layer(attention, row, row, None, heads=HEADS)[0] for row in x])
    assert_close(got, want)


def test_without_scores_summaries_are_means() -> None:
    """Every summary is then LN_s(mean K); r equal keys weigh as much as one whose logit is log r higher."""
    attention, x = one(partial(TransformerLS, window=4, rank=3)), tokens(2, LONGEST, 24)
    nn.init.zeros_(attention.compress.weight)
    weights = attention._weights(x, None)
    assert_close(weights, torch.full_like(weights, 1 / LONGEST))
    summaries = attention._rows(x, weights)[0].transpose(1, 2).flatten(-2)
    mean = attention.norm_slots(x.mean(1))
    assert_close(summaries, mean.repeat_interleave(len(summaries) // 2, 0)[:, None].expand_as(summaries))


def test_summaries_do_not_know_the_order() -> None:
    attention, x = one(partial(TransformerLS, window=4, rank=3)), tokens(2, LONGEST, 24)
    moved = x[:, torch.randperm(LONGEST)]
    summaries = [attention._rows(t, attention._weights(t, None))[0] for t in (x, moved)]
    assert_close(*summaries)


def test_convolution_starts_at_zero() -> None:
    plain, filtered = one(partial(TransformerLS, window=4)), one(partial(TransformerLS, window=4, kernel=3))
    filtered.load_state_dict(plain.state_dict(), strict=False)
    nn.init.zeros_(filtered.filters)
    assert filtered.state_dict().keys() - plain.state_dict().keys() == {"filters"}
    assert not TransformerLS(site(Pattern.SELF), kernel=3).filters.any()
    x = tokens(2, LONGEST, 24)
    assert_close(filtered(x, x, Masks())[0], plain(x, x, Masks())[0])


def test_one_layer_sees_its_window_only_without_summaries() -> None:
    attention, x = one(partial(TransformerLS, window=4, rank=0)), tokens(1, LONGEST, 24)
    changed = x.clone()
    changed[:, 20] += 1
    moved = (run(nn.ModuleList([attention]), changed, changed) != run(nn.ModuleList([attention]), x, x)).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == list(range(16, 24))


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(TransformerLS, dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention.train()(x, x, Masks())[0], attention.eval()(x, x, Masks())[0])


def test_cross_attention_is_refused() -> None:
    with pytest.raises(UnsupportedPattern, match="TransformerLS has no cross-attention form"):
        TransformerLS(site(Pattern.CROSS))
