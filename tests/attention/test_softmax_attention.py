"""Softmax attention with dropout on a CPU beside torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch.backends import cuda
from torch.testing import assert_close

from attention.cells import prefix
from subquad.ops import softmax_attention as module
from subquad.ops.softmax_attention import fused_attention_on_gpu, softmax_attention
from subquad.utils.devices import switched

NONE_DROPPED = 1e-12
"""Takes the path with dropout and drops nothing."""

FIRST_THREE = torch.arange(7) < torch.tensor([3, 7])[:, None]
MASKS = {
    "none": None,
    "padding": FIRST_THREE[:, None, None],
    "a row without keys": (torch.arange(7) < torch.tensor([0, 5])[:, None])[:, None, None],
    "each query its own": torch.ones(5, 7, dtype=torch.bool).tril(),
    "a query without keys": torch.ones(5, 7, dtype=torch.bool).tril(-1),
    "added": torch.linspace(-3, 3, 35).view(5, 7).double(),
}


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    return [torch.randn(s, generator=generator, dtype=torch.double, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_equals_torchs_own_in_values_and_gradients(mask: torch.Tensor | None, scale: float | None) -> None:
    inputs = tensors()
    ours = softmax_attention(*inputs, mask, NONE_DROPPED, scale)
    expected = F.scaled_dot_product_attention(*inputs, mask, scale=scale)
    assert_close(ours, expected)
    weights = torch.arange(ours.numel(), dtype=torch.double).view_as(ours)
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), inputs) for y in (ours, expected)), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_widths_and_strides_for_a_gpu_change_nothing(mask: torch.Tensor | None, scale: float | None) -> None:
    q, k, v = tensors()
    apart = None if mask is None else mask.mT.contiguous().mT
    got = fused_attention_on_gpu(q.mT.contiguous().mT, k, v, apart, 0.0, scale)
    want = F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (got, want)), strict=True):
        assert_close(a, b)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seen", [None, [90, 0]], ids=["full", "padded"])
def test_few_queries_over_many_keys_take_no_fused_kernel(seen: list[int] | None, monkeypatch) -> None:
    """Two rows of four blocks of queries occupy half of 16 processors."""
    q, k, v = (torch.randn(2, 1, n, 8, dtype=torch.double, requires_grad=True) for n in (97, 150, 150))
    mask = None if seen is None else prefix(seen, 150)[:, None, None]
    monkeypatch.setattr(module, "_MANY_NUMBERS", 150 * 8)
    results, calls, real = [], [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or real(*a, **k))
    for count, fused in ((15, 1), (16, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(module, "processors", lambda _, count=count: count)
            y = fused_attention_on_gpu(q, k, v, mask, 0.0, None)
        assert len(calls) == fused
        calls.clear()
        results.append((y, *torch.autograd.grad(y.square().sum(), (q, k, v))))
    assert_close(*results)
    compiled = torch.compile(fused_attention_on_gpu, fullgraph=True, backend="aot_eager")
    assert_close(compiled(q, k, v, mask, 0.0, None), results[0][0])
    fused_attention_on_gpu(q, k[:, :, :100], v[:, :, :100], None, 0.0, None)
    assert calls, "few keys"


def test_what_is_masked_has_no_effect_however_large() -> None:
    q, k, v = (t.detach() for t in tensors())
    mask = MASKS["padding"]
    before = softmax_attention(q, k, v, mask, NONE_DROPPED)
    k[0, :, 3:], v[0, :, 3:] = 1e30, float("nan")
    assert torch.equal(softmax_attention(q, k, v, mask, NONE_DROPPED), before)


@pytest.mark.parametrize("mask", ["none", "padding", "each query its own"])
def test_weights_are_dropped_and_the_mean_stays(mask: str) -> None:
    torch.manual_seed(0)
    q, k, v = (t.detach().float() for t in tensors())
    many = [t[None].expand(2000, -1, -1, -1, -1) for t in (q, k, v)]
    draws = softmax_attention(*many, MASKS[mask], 0.4)
    assert not torch.equal(draws[0], draws[1])
    assert_close(draws.mean(0), F.scaled_dot_product_attention(q, k, v, MASKS[mask]), rtol=0, atol=0.1)


def test_the_seed_decides() -> None:
    q, k, v = (t.detach() for t in tensors())
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(softmax_attention(q, k, v, None, 0.4))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_no_mask_goes_to_cudnn_and_other_choices_stay(monkeypatch):
    """Its gradients may be NaN; https://github.com/pytorch/pytorch/issues/196678."""
    seen, real = [], F.scaled_dot_product_attention

    def attention(*arguments, **keywords):
        seen.append((cuda.cudnn_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()))
        return real(*arguments, **keywords)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    x, mask = torch.randn(2, 1, 5, 8), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    with switched([(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, False)]):
        fused_attention_on_gpu(x, x, x, mask, 0.0, None)
        fused_attention_on_gpu(x, x, x, None, 0.0, None)
        assert cuda.cudnn_sdp_enabled()
    assert seen == [(False, False, True), (True, False, True)]
    monkeypatch.undo()
    compiled = torch.compile(fused_attention_on_gpu, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, x, x, mask, 0.0, None), fused_attention_on_gpu(x, x, x, mask, 0.0, None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
def test_half_precision_with_dropout_is_that_of_single_precision(dtype: torch.dtype, mask: torch.dtype | None) -> None:
    """Torch would write out all weights in half precision, with slow products of odd lengths."""
    q, k, v = (torch.randn(2, 2, 7, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    seen = torch.rand(2, 1, 1, 7) < 0.7
    seen = None if mask is None else seen if mask == torch.bool else torch.where(seen, 0.0, -1e4).to(dtype)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = softmax_attention(q, k, v, seen, dropout_p=0.2)
    torch.manual_seed(0)
    full = None if seen is None else seen.float() if seen.is_floating_point() else seen
    expected = softmax_attention(q.float(), k.float(), v.float(), full, dropout_p=0.2)
    torch.testing.assert_close(y, expected.to(dtype), rtol=0, atol=0)
    y.sum().backward()
    assert q.grad.dtype == dtype
