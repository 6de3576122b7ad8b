"""Scaled heads and sparse patterns with the operators of a GPU, here on a CPU, against their operators for a CPU."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attention.cells import prefix
from attention.checks import one, tokens
from subquad.attention.attention_sh import AttentionSH
from subquad.attention.base import Attention
from subquad.attention.sparse import Sparse
from subquad.attention.sparse_bn_sh import SparseBNSH
from subquad.measure.cuda_autocast import rules_of_cuda
from subquad.specs import Masks, Pattern
from subquad.utils.devices import as_on_a_gpu

MEANS = {"": {}, ", mean": {"beta": 0.7}, ", learned": {"beta": 0.7, "learned": True}}
CASES = {
    f"{scales}{mean}": partial(AttentionSH, scales=scales, **choices)
    for scales in ([1, 1, 2, 4], [3, 1, 1, 8], [5, 2, 5, 2], 40)
    for mean, choices in MEANS.items()
}
PATTERNS = {
    "fixed, 8 and 1": {"form": "fixed", "block": 8, "summary": 1},
    "fixed, 6 and 4": {"form": "fixed", "block": 6, "summary": 4},
    "fixed, 4 and 4": {"form": "fixed", "block": 4, "summary": 4},
    "strided by 5": {"form": "strided", "block": 5},
    "band of 4": {"form": "band", "window": 4},
}
CASES |= {
    f"{pattern}, {scales}": partial(SparseBNSH, scales=scales, **choices)
    for scales in (1, [1, 1, 2, 4], [3, 1, 1, 8])
    for pattern, choices in PATTERNS.items()
}
CASES["sparse"] = partial(Sparse, block=6, summary=2)


def results(attention: Attention, x: Tensor, context: Tensor | None, mask: Tensor | None) -> list[Tensor]:
    """The output, and its gradients by x, the context and the parameters."""
    inputs = [t.clone().requires_grad_() for t in (x, context) if t is not None]
    y = attention(inputs[0], inputs[-1], Masks(mask if context is None else None, mask))[0]
    weights = torch.linspace(-1, 1, y.numel()).view_as(y).to(y)
    return [y, *torch.autograd.grad(y, [*inputs, *attention.parameters()], weights)]


@pytest.mark.parametrize("length", [36, 37, 1])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize(("name", "pattern"), [(n, p) for n in CASES for p in Pattern if p in CASES[n].func.patterns])
def test_few_operators_compute_the_same(name: str, pattern: Pattern, padded: bool, length: int) -> None:
    attention, x = one(CASES[name], pattern), tokens(3, length, 24)
    context = tokens(3, max(1, length - 2), 24) if pattern is Pattern.CROSS else None
    size = length if context is None else context.shape[1]
    mask = prefix([size, size // 2, 0], size) if padded else None
    expected = results(attention, x, context, mask)
    with as_on_a_gpu():
        found = results(attention, x, context, mask)
    assert any(not torch.equal(*pair) for pair in zip(found, expected, strict=True)) or length != 37
    assert_close(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(
    "name", ["[3, 1, 1, 8]", "[3, 1, 1, 8], learned", "fixed, 8 and 1, 1", "strided by 5, [1, 1, 2, 4]"]
)
def test_half_precision_is_close(name: str, half: torch.dtype) -> None:
    attention, x = one(CASES[name]).float(), tokens(3, 37, 24).float()
    mask = prefix([37, 20, 0], 37)
    expected = results(attention, x, None, mask)
    with rules_of_cuda(), as_on_a_gpu(), torch.autocast("cpu", half):
        found = results(attention, x, None, mask)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() < 0.03 * theirs.norm() + 0.01
    assert [t.dtype for t in found[1:]] == [torch.float32] * len(found[1:])


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(CASES["[1, 1, 2, 4]"], dropout=0.5), tokens(2, 37, 24)
    with as_on_a_gpu():
        assert not torch.allclose(attention(x, x, Masks())[0], attention.eval()(x, x, Masks())[0])
