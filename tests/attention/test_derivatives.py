"""Every attention under gradients of gradients, torch.func, gradient checkpointing and copies: right, or refused.

`pytest --attention my_package.module:MyClass` runs these tests too.
"""

import copy
import pickle
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from attention.cells import Cell, after, prefix, run
from subquad.attention.base import Attention, SurrogateGradient
from subquad.specs import Pattern
from subquad.utils.derivatives import plain_operators
from subquad.utils.devices import as_on_a_gpu
from subquad.utils.errors import UserError

LENGTHS = [6, 4]


def case(cell: Cell, **sizes: int) -> tuple[Attention, Callable[[Tensor], Tensor], Tensor]:
    """An attention, a function of its context with padding, and a context."""
    attention = cell.build(**{"dim": 8, "heads": 2, **sizes}).eval()
    x, context = (t[:2] for t in cell.inputs(4, LENGTHS[0], dim=attention.site.dim))
    mask = prefix(LENGTHS, LENGTHS[0])
    if cell.pattern is Pattern.SELF:
        return attention, lambda t: attention(t, mask=mask), context
    return attention, lambda t: attention(x.to(t.dtype), t, context_mask=mask), context


def second(function: Callable[[Tensor], Tensor], x: Tensor, others: Iterable[Tensor]) -> list[Tensor]:
    """The gradients, by x and the others, of the derivative of a weighted sum of outputs along a direction.

    The weights are constants, so that no gradient that enters the backward pass of the attention has a derivative.
    """
    draw = torch.Generator().manual_seed(1)
    x = x.detach().requires_grad_()
    y = function(x)
    weights, along = (torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.dtype) for t in (y, x))
    (slope,) = torch.autograd.grad((y * weights).sum(), x, create_graph=True)
    if slope.grad_fn is None:  # a linear map
        return []
    inputs = [x, *others]
    return list(torch.autograd.grad((slope * along).sum(), inputs, allow_unused=True, materialize_grads=True))


def second_or_refusal(function: Callable[[Tensor], Tensor], x: Tensor, others: Iterable[Tensor]) -> list[Tensor] | str:
    try:
        return second(function, x, others)
    except UserError as error:
        return str(error)


def agrees_or_is_refused(attention: Attention, function: Callable[[Tensor], Tensor], x: Tensor, **close: float) -> None:
    """The second derivative, against that of plain operators; on a CPU, and in the paths that only a GPU takes."""
    with plain_operators():
        want = second(function, x, attention.parameters())
    for device in (nullcontext(), as_on_a_gpu()):
        with device:
            got = second_or_refusal(function, x, attention.parameters())
        if isinstance(got, str):
            assert "plain_operators" in got
        else:
            assert_close(got, want, **close)


def batch_or_refusal(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | str:
    """The gradients of a batch of weighted sums of outputs; the first weights are those of the sum."""
    y = function(x)
    weights = torch.stack([torch.ones_like(y), torch.zeros_like(y)])
    try:
        return torch.autograd.grad(y, x, weights, is_grads_batched=True)[0]
    except UserError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch itself
def test_batches_of_gradients(cell: Cell) -> None:
    _, function, x = case(cell)
    x.requires_grad_()
    (want,) = torch.autograd.grad(function(x).sum(), x)
    with plain_operators():
        assert_close(batch_or_refusal(function, x)[0], want)
    for device in (nullcontext(), as_on_a_gpu()):
        with device:
            got = batch_or_refusal(function, x)
        if isinstance(got, str):
            assert "plain_operators" in got
        else:
            assert_close(got[0], want)


def test_gradients_of_gradients(cell: Cell) -> None:
    attention, function, x = case(cell)
    with plain_operators():
        assert isinstance(attention, SurrogateGradient) or gradgradcheck(
            function, (x.requires_grad_(),), fast_mode=True
        )
    agrees_or_is_refused(attention, function, x)


def test_gradients_of_gradients_at_sizes_of_kernels(first_cell: Cell) -> None:
    attention, function, x = case(first_cell, dim=64, heads=4)
    attention.float()
    agrees_or_is_refused(attention, function, x.float(), rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.torch.jit.script", "ignore:There is a performance drop")  # of torch itself
def test_transforms_of_functions(cell: Cell) -> None:
    """vmap over rows, gradients of each row, jvp and hessian of torch.func agree with what they stand for."""
    attention, function, x = case(cell)
    weights, along = torch.randn_like(function(x)), torch.randn_like(x)

    def total(t: Tensor) -> Tensor:
        return (function(t) * weights).sum()

    y, slope = jvp(function, (x,), (along,))
    with plain_operators():
        gradient = torch.autograd.grad(total(x.requires_grad_()), x)[0]
        assert_close(y, function(x))
    x = x.detach()
    if not isinstance(attention, SurrogateGradient):
        assert_close((slope * weights).sum(), (gradient * along).sum())
    assert_close(grad(total)(x), gradient)
    mixed = hessian(lambda steps: total(x + steps[0] * along + steps[1] * weights.sum() * along.flip(1)))(
        x.new_zeros(2)
    )
    assert_close(mixed, mixed.mT)

    def row(parameters: dict[str, Tensor], t: Tensor) -> Tensor:
        other = () if cell.pattern is Pattern.SELF else (t,)
        return functional_call(attention, parameters, (t[None], *(o[None] for o in other))).square().sum()

    own = dict(attention.named_parameters())
    each = vmap(grad(row), (None, 0), randomness="same")(own, x)
    row(own, x[1].clone().requires_grad_()).backward()
    for name, parameter in own.items():
        assert_close(each[name][1], torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)


def test_checkpointed_layers_have_the_same_gradients(cell: Cell) -> None:
    """With dropout and padding. The carry is an input, as in a stack; the third layer is the second once more."""
    layers, (x, context), masks = cell.stack(2, dropout=0.2), cell.inputs(), cell.masks()
    results = []
    for reentrant in (None, False, True):
        layers.zero_grad()
        tokens, carry = x.clone().requires_grad_(), None
        y, other = tokens, None if x is context else context
        torch.manual_seed(1)
        for layer in (layers[0], layers[1], layers[1]):
            given = (y, other, masks, carry)
            change, carry = layer(*given) if reentrant is None else checkpoint(layer, *given, use_reentrant=reentrant)
            y = after(y, change)
        y.square().sum().backward()
        results.append([tokens.grad, *(p.grad for p in layers.parameters() if p.grad is not None)])
    assert_close(results[1], results[0], rtol=0, atol=0)
    assert_close(results[2], results[0], rtol=1e-9, atol=1e-9)


def test_copies_give_the_same(cell: Cell) -> None:
    """deepcopy and pickle after a training step; a layer of the device "meta", whose weights are loaded."""
    layers, inputs = cell.stack(2).eval(), cell.inputs()
    inputs[0].requires_grad_()
    want = run(layers, *inputs, cell.masks())
    want.sum().backward()
    with torch.device("meta"):
        empty = cell.stack(2).eval()
    empty.to_empty(device="cpu")
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.data.fill_(1)
    empty.load_state_dict(layers.state_dict())
    for other in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers)), empty):
        assert_close(run(other, *inputs, cell.masks()), want.detach(), rtol=0, atol=0)
