"""Reformer against one softmax over all tokens that a token sees in any round."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from reference import reformer as reference
from torch.autograd import gradcheck
from torch.testing import assert_close

from attention.cells import HEADS, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.reformer import Reformer
from subquad.specs import Masks, Pattern

several = pytest.mark.parametrize("hashes", [1, 3])
both_counts = pytest.mark.parametrize("duplicates", [False, True])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("across_buckets", [False, True])
@both_counts
@several
@pytest.mark.parametrize("chunk", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_equals_the_printed_form(chunk: int, hashes: int, duplicates: bool, across_buckets: bool, lengths: str) -> None:
    choices = {"chunk": chunk, "across_buckets": across_buckets, "duplicates": duplicates}
    layers = stack(partial(Reformer, hashes=hashes, **choices), Pattern.SELF).eval()
    agree(layers, partial(reference.layer, heads=HEADS, **choices), lengths)


@several
def test_logits_need_not_be_scaled(hashes: int) -> None:
    layers = stack(partial(Reformer, hashes=hashes, chunk=4, scaled=False, buckets=6), Pattern.SELF).eval()
    agree(layers, partial(reference.layer, heads=HEADS, chunk=4, scaled=False), "padded")


def shared_softmax(attention: Reformer, x: torch.Tensor) -> torch.Tensor:
    """Softmax attention with keys q / |q|, in which no token reads itself."""
    q, v = attention.query_value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(2, -1)
    others = ~torch.eye(x.shape[1], dtype=torch.bool)
    y = F.scaled_dot_product_attention(q, q / q.norm(dim=-1, keepdim=True), v, attn_mask=others)
    return attention.out(y.transpose(1, 2).flatten(2))


@both_counts
@several
@pytest.mark.parametrize("length", [2, 13, 37])
def test_one_chunk_is_softmax_attention_without_self(length: int, hashes: int, duplicates: bool) -> None:
    """For any number of rounds and any rotations, which training redraws."""
    attention = one(partial(Reformer, hashes=hashes, chunk=LONGEST, across_buckets=True, duplicates=duplicates))
    x = tokens(2, length, 24)
    for mode in (True, False):
        assert_close(attention.train(mode)(x, x, Masks())[0], shared_softmax(attention, x))


@both_counts
def test_a_round_repeated_changes_nothing(duplicates: bool) -> None:
    single, triple = (one(partial(Reformer, hashes=r, chunk=4, duplicates=duplicates)).eval() for r in (1, 3))
    triple.load_state_dict({**single.state_dict(), "rotations": single.rotations.expand_as(triple.rotations)})
    x = tokens(2, LONGEST, 24)
    assert_close(triple(x, x, Masks())[0], single(x, x, Masks())[0])


@several
def test_a_token_alone_reads_itself(hashes: int) -> None:
    """With one token to a bucket, the layer is out(value(x))."""
    attention = one(partial(Reformer, hashes=hashes, chunk=4, buckets=12)).eval()
    with torch.no_grad():
        attention.rotations.copy_(torch.eye(6)[:, None].expand_as(attention.rotations))
        attention.query_value.weight.view(HEADS, 2, 6, 24)[:, 0] = 0
        attention.query_value.bias.view(HEADS, 2, 6)[:, 0] = 0
        attention.query_value.weight.view(HEADS, 2, 6, 24)[:, 0, :, :6] = torch.eye(6)
    x = tokens(1, 12, 24)
    x[..., :6] = torch.cat([torch.eye(6), -torch.eye(6)])[torch.randperm(12)]
    v = attention.query_value(x).unflatten(-1, (HEADS, 2, 6))[..., 1, :].flatten(-2)
    assert_close(attention(x, x, Masks())[0], attention.out(v))


def test_rotations_are_drawn_anew_in_training_only() -> None:
    attention, x = one(partial(Reformer, chunk=4)), tokens(2, LONGEST, 24)
    before = attention.rotations.clone()
    assert not torch.allclose(attention(x, x, Masks())[0], attention(x, x, Masks())[0])
    assert_close(attention.rotations, before, rtol=0, atol=0)
    attention.eval()
    assert_close(attention(x, x, Masks())[0], attention(x, x, Masks())[0], rtol=0, atol=0)


def test_heads_and_rounds_hash_independently() -> None:
    rotations = one(partial(Reformer, hashes=3, chunk=4)).rotations
    maps = rotations.permute(0, 2, 1, 3).flatten(0, 1)
    assert rotations.shape == (HEADS, 6, 3, 10)
    assert torch.pdist(maps.flatten(1)).min() > 1


@pytest.mark.slow
@several
def test_dropout_keeps_the_mean(hashes: int) -> None:
    attention = one(partial(Reformer, hashes=hashes, chunk=LONGEST, across_buckets=True), dropout=0.4)
    exact, x = copy.deepcopy(attention).eval(), tokens(1, 5, 24)
    many = x.expand(1000, -1, -1)
    draws, _ = attention(many, many, Masks())
    assert not torch.equal(draws[0], draws[1])
    assert_close(draws.mean(0), exact(x, x, Masks())[0][0], rtol=0, atol=0.06)


@several
@pytest.mark.slow
def test_gradients_with_dropout(hashes: int) -> None:
    attention = one(partial(Reformer, hashes=hashes, chunk=4), dim=8, heads=2, dropout=0.4)

    def seeded(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return attention(x, x, Masks())[0]

    assert gradcheck(seeded, (tokens(2, 11, 8).requires_grad_(),))


@several
def test_mixed_precision_trains(hashes: int) -> None:
    attention, x = one(partial(Reformer, hashes=hashes, chunk=LONGEST, across_buckets=True)).float(), tokens(2, 13, 24)
    gradients = []
    for mixed in (False, True):
        attention.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            y = attention(x.float(), x.float(), Masks())[0]
        y.float().square().sum().backward()
        gradients.append(attention.query_value.weight.grad)
    assert_close(*gradients, rtol=0, atol=0.03 * float(gradients[0].abs().max()))


def test_buckets_fill_half_a_chunk() -> None:
    assert Reformer(site(Pattern.SELF, query_len=4096, context_len=4096)).buckets == 128
    assert Reformer(site(Pattern.SELF)).buckets == 2
