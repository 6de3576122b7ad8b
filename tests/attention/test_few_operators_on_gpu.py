"""Mechanisms with the operators of a GPU, here on a CPU, against their formulations for a CPU."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from attention.cells import prefix
from attention.checks import LONGEST, one, stack, tokens
from subquad.attention.flowformer import Flowformer
from subquad.attention.linear import Linear
from subquad.attention.linformer import Linformer
from subquad.attention.luna import Luna
from subquad.attention.nystromformer import Nystromformer, _iterate
from subquad.attention.performer import Performer
from subquad.measure.cuda_autocast import rules_of_cuda
from subquad.ops.pseudo_inverse_on_gpu import pseudo_inverse
from subquad.specs import Masks, Pattern
from subquad.utils.devices import as_on_a_gpu
from subquad.utils.fixed_weights import fixed_weights

NONE_DROPPED = 1e-12
"""Takes the path with dropout and drops nothing."""
CASES = {
    "linformer": partial(Linformer, k=5),
    "linformer, none": partial(Linformer, k=3, sharing="none"),
    "linformer, kv": partial(Linformer, k=5, sharing="kv"),
    "linformer, layer": partial(Linformer, k=5, sharing="layer"),
    "luna": partial(Luna, l=5),
    "luna, released": partial(Luna, l=5, latent_norm=True, latent_dropout=NONE_DROPPED),
    "luna, static": partial(Luna, l=5, dynamic=False),
    "nystromformer": partial(Nystromformer, landmarks=9, kernel=3),
    "nystromformer, narrow": partial(Nystromformer, landmarks=5, kernel=None),
}
every_case = pytest.mark.parametrize("name", CASES)


def passed(layers: nn.ModuleList, x: Tensor, context: Tensor, masks: Masks) -> Tensor:
    carry = None
    for layer in layers:
        y, carry = layer(x, x if context is x else context, masks, carry)
        x = x + y
    return x


def results(layers: nn.ModuleList, inputs: list[Tensor], masks: Masks) -> list[Tensor]:
    """The output, at padding too, and its gradients by the inputs and the parameters."""
    inputs = [t.clone().requires_grad_() for t in inputs]
    y = passed(layers, inputs[0], inputs[-1], masks)
    weights = torch.linspace(-1, 1, y.numel()).view_as(y).to(y)
    return [y, *torch.autograd.grad(y, [*inputs, *layers.parameters()], weights)]


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("length", [LONGEST, 29])
@pytest.mark.parametrize("pattern", Pattern)
@every_case
def test_few_operators_compute_the_same(name: str, pattern: Pattern, length: int, padded: bool) -> None:
    layers = stack(CASES[name], pattern, dropout=NONE_DROPPED if length == LONGEST else 0.0)
    inputs, masks = [tokens(4, length, 24)], Masks()
    if pattern is Pattern.CROSS:
        inputs.insert(0, tokens(4, 7, 24))
    if padded:
        mask = prefix([length, 12, 2, 0], length)
        mask[0, 3] = False
        inputs[-1][~mask] *= 1e3
        masks = Masks(mask if pattern is Pattern.SELF else None, mask)
    expected = results(layers, inputs, masks)
    with as_on_a_gpu():
        found = results(layers, inputs, masks)
        with torch.no_grad(), fixed_weights():
            evaluated = [passed(layers, inputs[0], inputs[-1], masks) for _ in range(2)]
    assert any(not torch.equal(*pair) for pair in zip(found, expected, strict=True))  # they are two formulations
    assert_close(found, expected, rtol=1e-10, atol=1e-11)
    assert_close(evaluated, [expected[0]] * 2, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("rows", "columns"), [(7, 7), (5, 8), (8, 5)])
def test_the_pseudo_inverse_equals_that_of_the_printed_steps(rows: int, columns: int) -> None:
    a = (2 * tokens(6, rows, columns)).softmax(-1)
    a[0, 1], a[1, :, 0] = 0, 0
    a[2, :, 0] = a[2].amax(1)
    a[2, :, 1] = a[2, :, 0]  # two columns have the largest sum
    a.requires_grad_()
    expected, found = _iterate(a, 6), pseudo_inverse(a, 6)
    assert_close(found, expected)
    gradient = tokens(*found.shape)
    assert_close(*(torch.autograd.grad(z, a, gradient) for z in (found, expected)))


@every_case
def test_kept_products_serve_every_length_and_end_with_their_weights(name: str) -> None:
    layers, lengths = stack(CASES[name], Pattern.SELF).eval(), (LONGEST, 21, LONGEST)
    x = tokens(1, LONGEST, 24)  # one row: what depends on it has the axes of what does not
    with torch.no_grad():
        for _ in range(2):
            expected = [passed(layers, x[:, :n], x[:, :n], Masks()) for n in lengths]
            with as_on_a_gpu(), fixed_weights():
                found = [passed(layers, *[x[:, :n]] * 2, Masks()) for n in lengths]
            assert_close(found, expected)
            for p in layers.parameters():
                p.mul_(1.1)


@every_case
def test_half_precision_stays_as_close_as_the_formulation_for_a_cpu(name: str) -> None:
    layers, x = stack(CASES[name], Pattern.SELF).float(), tokens(3, LONGEST, 24).float()
    masks = Masks(*[prefix([LONGEST, 20, 0], LONGEST)] * 2)
    exact = results(layers, [x], masks)
    with rules_of_cuda(), torch.autocast("cpu", torch.bfloat16):
        plain = results(layers, [x], masks)
        with as_on_a_gpu():
            found = results(layers, [x], masks)
    assert [t.dtype for t in found] == [t.dtype for t in plain]
    for got, other, want in zip(found, plain, exact, strict=True):
        assert (got - want).norm() < 5 * (other - want).norm() + 1e-3 * want.norm()


@pytest.mark.parametrize("name", [*CASES, "flowformer", "linear", "performer"])
def test_the_context_may_be_the_queries_with_another_mask(name: str) -> None:
    others = {"flowformer": Flowformer, "linear": Linear, "performer": Performer}
    layer, x = one({**CASES, **others}[name], Pattern.CROSS), tokens(3, LONGEST, 24)
    masks = Masks(prefix([LONGEST, 20, 9], LONGEST), prefix([30, LONGEST, 5], LONGEST))
    with as_on_a_gpu(), torch.no_grad():
        found, expected = (layer(x, context, masks)[0][masks.query] for context in (x, x.clone()))
    assert_close(found, expected, rtol=1e-8, atol=1e-8)


class Stop(torch.autograd.Function):
    """Passes no gradient on."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


@pytest.mark.parametrize("name", ["luna", "luna, static"])
def test_what_follows_may_stop_the_gradient(name: str) -> None:
    x = tokens(3, LONGEST, 24).requires_grad_()
    with as_on_a_gpu():
        Stop.apply(one(CASES[name])(x)).sum().backward()
    assert x.grad is None or not x.grad.any()


@every_case
def test_a_batch_may_be_empty(name: str) -> None:
    x = tokens(0, LONGEST, 24).requires_grad_()
    with as_on_a_gpu():
        one(CASES[name])(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
