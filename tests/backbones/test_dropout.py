"""Dropout from 16 random bits for each entry: probabilities, mean, gradients and the dependence on torch's seed."""

import pytest
import torch

from subquad.blocks.dropout_layer import Dropout
from subquad.ops.dropout import _WORTH, dropout

MANY = 16 * _WORTH


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_entries_are_dropped_as_often_as_asked_and_the_mean_stays(p):
    torch.manual_seed(1)
    y = dropout(torch.ones(MANY), p, training=True)
    assert set(y.unique().tolist()) <= {0.0, y.max().item()}
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=5 * (p * (1 - p) / MANY) ** 0.5)
    assert y.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)
    kept = (y > 0).double()
    for shift in (1, 4, 64):  # neighbours, also those that share a random number, are dropped independently
        both = (kept * kept.roll(shift)).mean().item()
        assert both == pytest.approx((1 - p) ** 2, abs=6 * ((1 - p) / MANY) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_gradient_goes_where_the_entry_was_kept(dtype):
    x = torch.randn(3, _WORTH, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.25, training=True)
    y.backward(torch.full_like(y, 2))
    scale = 4 / 3
    torch.testing.assert_close(y, torch.where(y == 0, 0, x * scale).to(dtype))
    torch.testing.assert_close(x.grad, torch.where(y == 0, 0, torch.full_like(x, 2 * scale)))
    assert 0.2 < (y == 0).double().mean() < 0.3


def test_the_seed_of_torch_decides_and_every_call_draws_anew():
    x = torch.ones(MANY)
    torch.manual_seed(7)
    first, second = dropout(x, 0.5, training=True), dropout(x, 0.5, training=True)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.5, training=True), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_outside_training_or_at_zero():
    x, layer = torch.randn(MANY), Dropout(0.5)
    assert dropout(x, 0.0, training=True) is x
    assert layer.eval()(x) is x
    assert not torch.equal(layer.train()(x), x)


@pytest.mark.parametrize("p", [1.0, 1 - 1e-9, 1e-9])
def test_probabilities_beyond_sixteen_bits_keep_their_meaning(p):
    y = dropout(torch.ones(MANY), p, training=True)
    assert y.isfinite().all()
    assert (y == 0).all() if p > 0.5 else (y == 1).all()


def test_small_inputs_and_compiled_models_take_the_dropout_of_torch():
    torch.manual_seed(3)
    small = dropout(torch.ones(8, 8), 0.5, training=True)
    torch.manual_seed(3)
    assert torch.equal(small, torch.nn.functional.dropout(torch.ones(8, 8), 0.5))
    compiled = torch.compile(Dropout(0.5), backend="eager", fullgraph=True)
    assert set(compiled(torch.ones(MANY)).unique().tolist()) == {0.0, 2.0}
