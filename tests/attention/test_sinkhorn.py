"""Sparse Sinkhorn attention against its printed form, Sinkhorn's sums, and attention within blocks as its limit."""

from functools import partial

import pytest
import torch
from reference import sinkhorn as reference
from reference import softmax as exact
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention import sinkhorn
from subquad.attention.sinkhorn import Sinkhorn, balance
from subquad.specs import Masks, Pattern

ITERATIONS = [1, 5, 8, 20]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("block", "iterations", "temperature"), [(4, 8, 0.75), (5, 1, 0.3), (64, 2, 1.0)])
def test_equals_the_printed_form(block: int, iterations: int, temperature: float, lengths: str) -> None:
    sizes = {"block": block, "iterations": iterations, "temperature": temperature}
    agree(stack(partial(Sinkhorn, **sizes), Pattern.SELF), partial(reference.layer, heads=HEADS, **sizes), lengths)


def test_columns_sum_to_one_and_rows_tend_to() -> None:
    scores = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    errors = []
    for iterations in ITERATIONS:
        s = balance(scores, None, iterations)
        assert_close(s[0, 0], reference.sinkhorn(scores[0, 0], iterations))
        assert_close(s.sum(-2), torch.ones(1, 1, 8, dtype=torch.float64), rtol=0, atol=1e-14)
        errors.append((s.sum(-1) - 1).abs().max())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-2
    assert errors[-1] < 1e-9


def test_blocks_without_tokens_take_no_part() -> None:
    scores, real = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.tensor([[True] * 4 + [False] * 2, [False] * 6])
    s = balance(scores, real, 8)
    assert_close(s[0, :, :4, :4], balance(scores[:1, :, :4, :4], None, 8)[0])
    assert not s[0, :, 4:].any()
    assert not s[0, :, :, 4:].any()
    assert not s[1].any()


def test_large_scores_do_not_overflow() -> None:
    s = balance(1e4 * torch.randn(1, 1, 8, 8), None, 20)
    assert_close(s.sum(-2), torch.ones(1, 1, 8))


def test_identity_as_sorting_is_attention_within_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of a block is then seen twice, which does not change a softmax; all blocks hold 5 tokens."""
    monkeypatch.setattr(sinkhorn, "balance", lambda logits, *_: torch.eye(logits.shape[-1]).expand_as(logits))
    attention, x = one(partial(Sinkhorn, block=5)), tokens(2, 35, 24)
    want = [exact.layer(attention, cut, cut, None, heads=HEADS)[0] for row in x for cut in row.split(5)]
    assert_close(attention(x, x, Masks())[0], torch.stack(want).view_as(x))


def test_one_block_is_softmax() -> None:
    attention, x = one(partial(Sinkhorn, block=LONGEST)), tokens(2, LONGEST, 24)
    want = torch.stack([exact.layer(attention, row, row, None, heads=HEADS)[0] for row in x])
    assert_close(attention(x, x, Masks())[0], want)


def test_noise_acts_in_training_only() -> None:
    attention, x = one(partial(Sinkhorn, block=4, gumbel=True)), tokens(2, LONGEST, 24)
    noisy = [attention.train()(x, x, Masks())[0] for _ in range(2)]
    quiet = [attention.eval()(x, x, Masks())[0] for _ in range(2)]
    assert not torch.allclose(*noisy)
    assert_close(*quiet, rtol=0, atol=0)
    attention.gumbel = False
    assert_close(attention.train()(x, x, Masks())[0], quiet[0])


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(partial(Sinkhorn, block=4), dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention.train()(x, x, Masks())[0], attention.eval()(x, x, Masks())[0])
