"""Affine maps: the fused kernel has the values and gradients of torch's own operations."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from subquad.attention.base import Affine
from subquad.ops import affine as module
from subquad.ops.affine import affine

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
LARGE, SMALL = (2, 600, 200), (2, 9, 200)
"""Inputs above and below what the fused kernel is worth."""


def sides(shape, activation, bias=True, contiguous=True):
    """Outputs and gradients of `affine` and of torch's own operations."""
    x = torch.randn(shape) if contiguous else torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
    weight = torch.randn(96, shape[-1]) / 10
    offset = torch.randn(96) if bias else None
    gradient = torch.randn(*shape[:-1], 96)
    for function in (affine, plain):
        leaves = [part.detach().requires_grad_() for part in (x, weight, offset) if part is not None]
        y = function(*leaves, *(() if bias else (None,)), activation)
        yield [y.detach(), *torch.autograd.grad(y, leaves, gradient)]


def plain(x, weight, bias, activation):
    y = nn.functional.linear(x, weight, bias)
    return {"none": y, "relu": y.relu(), "sigmoid": y.sigmoid()}[activation]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid"])
@pytest.mark.parametrize("shape", [LARGE, SMALL, (1200, 200), (1, 1200, 1, 200)])
def test_equals_the_plain_operations(monkeypatch, shape, activation, bias):
    monkeypatch.setattr(module, "_WORTH", 1 << 22)
    fused, expected = sides(shape, activation, bias)
    for got, want in zip(fused, expected, strict=True):
        assert_close(got, want, atol=2e-4, rtol=1e-4)


@needs_onednn
def test_takes_tokens_of_any_strides(monkeypatch):
    monkeypatch.setattr(module, "_WORTH", 1 << 22)
    fused, expected = sides(LARGE, "relu", contiguous=False)
    for got, want in zip(fused, expected, strict=True):
        assert_close(got, want, atol=2e-4, rtol=1e-4)


@needs_onednn
@pytest.mark.parametrize("bias", [torch.randn(512)[::2], torch.randn(1).expand(256)])
def test_takes_biases_of_any_strides(bias):
    x, weight = torch.randn(256, 256), torch.randn(256, 256)
    assert_close(affine(x, weight, bias), nn.functional.linear(x, weight, bias), atol=2e-4, rtol=1e-4)


@needs_onednn
def test_only_large_products_in_single_precision_are_fused(monkeypatch):
    weight = torch.randn(256, 256)
    assert module._fused(torch.randn(256, 256), weight, None)
    assert not module._fused(torch.randn(255, 256), weight, None)
    assert not module._fused(torch.randn(256, 256, dtype=torch.float64), weight.double(), None)
    with torch.autocast("cpu"):
        assert not module._fused(torch.randn(256, 256), weight, None)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not module._fused(torch.randn(256, 256), weight, None)


def test_autocast_reaches_the_map():
    with torch.autocast("cpu", torch.bfloat16):
        assert Affine(256, 256)(torch.randn(512, 256)).dtype == torch.bfloat16


def test_a_layer_has_the_weights_of_a_linear_layer():
    torch.manual_seed(0)
    ours = Affine(8, 4)
    torch.manual_seed(0)
    plain_linear = nn.Linear(8, 4)
    assert ours.state_dict().keys() == plain_linear.state_dict().keys()
    x = torch.randn(3, 8)
    assert torch.equal(ours(x), plain_linear(x))
