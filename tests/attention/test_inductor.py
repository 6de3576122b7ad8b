"""torch.compile: the derivatives of every mechanism as traced, and the generated code of two mechanisms."""

import inspect
import sys

import pytest
import torch
from conftest import made, mechanisms
from torch.testing import assert_close

from attention.cells import declared, first_of_each_class, prefix, shrunk
from attention.checks import one, stack, tokens
from subquad.backbones.encoder import class_of
from subquad.specs import Masks, Pattern


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # inside torch
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["softmax", "dba"])
def test_inductor_agrees(name: str) -> None:
    torch.compiler.reset()
    attention = stack(made("attention", name), Pattern.SELF, layers=1)[0]
    x, mask = tokens(2, 37, 24).requires_grad_(), torch.arange(37) < torch.tensor([[37], [13]])
    outputs, gradients = [], []
    for function in (attention, torch.compile(attention, fullgraph=True)):
        y = function(x, x, Masks(mask, mask))[0][mask]
        outputs.append(y)
        gradients.append(torch.autograd.grad(y.square().mean(), x)[0])
    assert_close(*outputs)
    assert_close(*gradients)


def own_derivatives(name: str) -> bool:
    """Whether the file of a mechanism differentiates by hand."""
    return "autograd.Function" in inspect.getsource(sys.modules[class_of(made("attention", name)).__module__])


FIRST = first_of_each_class({name: made("attention", name) for name in mechanisms()})
COMPILED = [(name, False) for name in mechanisms()] + [(name, True) for name in mechanisms() if own_derivatives(name)]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.*should not be instantiated")
@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.release), True], ids=["full", "padded"])
@pytest.mark.parametrize(
    ("name", "mixed"), [pytest.param(*case, marks=[pytest.mark.release] * (case[0] not in FIRST)) for case in COMPILED]
)
def test_compiled_layers_have_the_same_outputs_and_gradients(name: str, mixed: bool, masked: bool) -> None:
    """With and without gradients, because some mechanisms have a separate path without.

    Tests the compiler's tracing and its rules of differentiation, but not the code that it generates.
    """
    torch.compiler.reset()
    factory = shrunk(made("attention", name))
    pattern = Pattern.SELF if Pattern.SELF in declared(factory) else Pattern.CROSS
    attention = one(factory, pattern).float() if mixed else one(factory, pattern)
    x = tokens(2, 37, 24).to(torch.float32 if mixed else torch.float64)
    mask = prefix([37, 13], 37) if masked else None
    results = []
    for function in (attention, torch.compile(attention, backend="aot_eager_decomp_partition", fullgraph=True)):
        attention.zero_grad()
        own = x.clone().requires_grad_()
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            y = function(own, own, Masks(mask, mask))[0].to(x.dtype)
            torch.manual_seed(1)
            with torch.no_grad():
                inferred = function(x, x, Masks(mask, mask))[0].to(x.dtype)
        y, inferred = (y, inferred) if mask is None else (y[mask], inferred[mask])
        y.square().sum().backward()
        gradients = [p.grad for p in attention.parameters() if p.grad is not None]
        results.append([y.detach(), inferred, own.grad, *gradients])
    if mixed:
        for plain, compiled in zip(results[0][:3], results[1][:3], strict=True):
            assert (compiled - plain).norm() < 0.05 * plain.norm()
    else:
        assert_close(results[1], results[0])
