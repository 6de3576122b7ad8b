"""The tensor functions of the mechanisms against loops, also for masks with holes."""

from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from subquad.ops.masks import count, masked_softmax, zero_padding
from subquad.ops.pooling import max_pool, mean_pool
from subquad.ops.unit import unit
from subquad.utils.derivatives import plain_operators

MASK = torch.tensor([[1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0] * 11]).bool()


@pytest.mark.parametrize(("pool", "best"), [(mean_pool, torch.mean), (max_pool, torch.amax)])
@pytest.mark.parametrize("size", [1, 3, 4, 11, 20])
def test_pooling_reads_real_tokens_only(pool, best, size: int) -> None:
    x = torch.randn(3, 11, 6)
    pooled, real = pool(x, MASK, size)
    for row, keep, got, there in zip(x, MASK, pooled, real, strict=True):
        for k, (tokens, visible) in enumerate(zip(row.split(size), keep.split(size), strict=True)):
            assert there[k] == visible.any()
            assert_close(got[k], best(tokens[visible], 0) if visible.any() else torch.zeros(6))


@pytest.mark.parametrize("pool", [mean_pool, max_pool])
def test_pooling_without_mask_is_pooling_of_real_tokens(pool) -> None:
    x = torch.randn(3, 11, 6)
    assert_close(pool(x, None, 4)[0], pool(x, torch.ones(3, 11, dtype=torch.bool), 4)[0])
    assert pool(x, None, 4)[1].all()


def test_masked_softmax() -> None:
    logits = torch.randn(3, 11)
    weights = masked_softmax(logits, MASK)
    assert_close(weights[0, MASK[0]], logits[0, MASK[0]].softmax(0))
    assert_close(weights.sum(-1), torch.tensor([1.0, 1.0, 0.0]))
    assert not weights[~MASK].any()
    assert_close(masked_softmax(logits.T, MASK.T, 0), weights.T)


def test_zero_padding_removes_what_is_not_finite() -> None:
    x = torch.randn(3, 11, 2).masked_fill(~MASK[..., None], torch.nan)
    assert_close(zero_padding(x, MASK), x.nan_to_num())


def test_count_is_at_least_one() -> None:
    assert count(MASK, 11).flatten().tolist() == [6, 1, 1]
    assert count(None, 11) == 11


@pytest.mark.parametrize("operators", [nullcontext, plain_operators])
def test_unit_vectors_of_numbers_whose_squares_half_precision_cannot_hold(operators) -> None:
    x = torch.tensor([100, 1e-5, 0], dtype=torch.float16)[:, None].expand(3, 64)
    with operators():
        assert_close(unit(x), torch.tensor([0.125, 0.125, 0], dtype=x.dtype)[:, None].expand(3, 64))
