"""Linear attentions with the operators of a GPU, here on a CPU, against their formulations for a CPU."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from attention.cells import prefix
from attention.checks import one, tokens
from subquad.attention.base import Attention
from subquad.attention.cosformer import CosFormer
from subquad.attention.ecoformer import EcoFormer
from subquad.attention.flowformer import Flowformer
from subquad.attention.linear import Linear
from subquad.attention.performer import Performer
from subquad.measure.cuda_autocast import rules_of_cuda
from subquad.specs import Masks
from subquad.utils.devices import as_on_a_gpu
from subquad.utils.fixed_weights import fixed_weights

LENGTH = 37
CASES = {
    "linear": Linear,
    "linear, eps": partial(Linear, eps=0.5),
    "cosformer": CosFormer,
    "cosformer, eps": partial(CosFormer, eps=30.0),
    "ecoformer": partial(EcoFormer, bits=5, anchors=7),
    "flowformer": Flowformer,
    "flowformer, eps": partial(Flowformer, eps=0.5),
    "performer": partial(Performer, features=10),
    "performer, relu": partial(Performer, features=10, feature_map="relu"),
}


def results(attention: Attention, x: Tensor, mask: Tensor | None, recompute: bool = False) -> list[Tensor]:
    """The output at real tokens and its gradients by x and the parameters."""
    x = x.clone().requires_grad_()
    inputs = x, x, Masks(mask, mask)
    y = (checkpoint(attention, *inputs, use_reentrant=False) if recompute else attention(*inputs))[0]
    if mask is not None:
        y = y * mask[..., None]
    weights = torch.linspace(-1, 1, y.numel()).view_as(y).to(y)
    return [y, *torch.autograd.grad(y, [x, *attention.parameters()], weights)]


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("name", CASES)
def test_few_operators_compute_the_same(name: str, padded: bool) -> None:
    attention, x = one(CASES[name]), tokens(3, LENGTH, 24)
    mask = prefix([LENGTH, 20, 0], LENGTH) if padded else None
    expected = results(attention, x, mask)
    with as_on_a_gpu():
        found = results(attention, x, mask)
        assert_close(results(attention, x, mask, recompute=True), found, rtol=0, atol=0)
        with torch.no_grad():
            evaluated = attention(x, x, Masks(mask, mask))[0]
    assert any(not torch.equal(*pair) for pair in zip(found, expected, strict=True))  # they are two formulations
    assert_close(found, expected, rtol=1e-11, atol=1e-12)
    assert_close(evaluated if mask is None else evaluated * mask[..., None], expected[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_fixed_weights_change_no_output(name: str) -> None:
    attention, x, products = one(CASES[name]).float(), tokens(3, LENGTH, 24).float(), {}
    mask = prefix([LENGTH, 20, 0], LENGTH)

    def outputs() -> list[Tensor]:
        found = []
        for enabled in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                found += [attention(x, x, Masks(m, m))[0] for m in (None, mask)]
        return found

    with rules_of_cuda(), as_on_a_gpu():
        with fixed_weights(products):
            assert outputs()[0].requires_grad
            assert not products
        with torch.no_grad():
            for factor in (1, 2):
                for weight in attention.parameters():
                    weight.mul_(factor)
                expected = outputs()
                with fixed_weights(products if factor == 1 else None):
                    assert_close([outputs(), outputs()], [expected, expected], rtol=0, atol=0)
    assert products


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("name", ["linear", "flowformer", "performer", "performer, relu"])
def test_sums_over_many_tokens_fit_half_precision(name: str, half: torch.dtype) -> None:
    """In float16, sums of these features over 8,192 tokens would be infinite."""
    attention = one(CASES[name], query_len=8192, context_len=8192).float()
    x = tokens(3, 8192, 24).float()
    attention.projections.key.bias.data.fill_(10)
    mask = prefix([8192, 20, 0], 8192)
    expected = results(attention, x, mask)
    with rules_of_cuda(), as_on_a_gpu(), torch.autocast("cpu", half):
        found = results(attention, x, mask)
    assert all(part.isfinite().all() for part in found)
    assert (found[0] - expected[0]).norm() < 0.03 * expected[0].norm()


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_codes_in_half_precision(half: torch.dtype) -> None:
    """Compared at one precision, because a code may change with it."""
    attention, x = one(CASES["ecoformer"], query_len=512, context_len=512).float(), tokens(3, 512, 24).float()
    mask = prefix([512, 20, 0], 512)
    with rules_of_cuda(), torch.autocast("cpu", half):
        expected = results(attention, x, mask)
        with as_on_a_gpu():
            found = results(attention, x, mask)
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if i != 3:  # the bias of queries and keys, whose gradients cancel over the tokens
            assert (ours - theirs).norm() < 0.03 * theirs.norm()
