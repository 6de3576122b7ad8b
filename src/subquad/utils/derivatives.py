"""Derivatives that are written out: where they serve, and the refusal to differentiate them again.

Fast paths have a first derivative that is written out for reverse mode. Second derivatives, forward mode and the
transforms of torch.func need operators that torch differentiates.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from subquad.utils.errors import UserError

_plain: list[None] = []
"""One entry for each block of `plain_operators` that is open, in whatever thread: a backward pass may have its own."""


@contextmanager
def plain_operators() -> Iterator[None]:
    """Inside, layers are computed by operators of torch that have derivatives of every order, which is slower.

    Gradients of gradients (`create_graph=True`) need it around the forward pass. `torch.func` and forward mode need
    nothing.

    Examples:
        >>> import torch
        >>> from subquad import DBA, plain_operators
        >>> layer, x = DBA(dim=64, heads=4), torch.randn(2, 300, 64, requires_grad=True)
        >>> with plain_operators():
        ...     y = layer(x)
        >>> (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        >>> slope.square().sum().backward()
    """
    _plain.append(None)
    try:
        yield
    finally:
        _plain.pop()


def by_torch() -> bool:
    """Whether torch must differentiate: in `plain_operators`, and where operators are transformed.

    Never while compiling: the compiler differentiates what was written out, and reads none of these switches.
    """
    return not torch.compiler.is_compiling() and (bool(_plain) or transformed())


def transformed() -> bool:
    """Whether operators see transforms of torch.func, or forward mode without torch.func."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def seen_by_torch() -> bool:
    """Whether something other than a computation at once reads the operators: `by_torch`, a compiler or a trace."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or by_torch()


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Marks the backward pass of an autograd function that has no derivative of its own, and takes no batches either.

    With `create_graph=True` it raises UserError. torch's `once_differentiable` does not always refuse: with it, the
    result of `grad(y.sum(), x, create_graph=True)` is silently a constant.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor | None) -> Any:
        if not torch.compiler.is_compiling():
            _refuse_graph()
        return backward(ctx, *gradients)

    return one_at_a_time(checked)


def one_at_a_time(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a backward pass that takes no batch of gradients (`is_grads_batched=True`), which raises UserError."""

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor | None) -> Any:
        if not torch.compiler.is_compiling() and any(g is not None and _is_batch(g) for g in gradients):
            raise UserError(_REFUSAL)
        return backward(ctx, *gradients)

    return checked


def differentiated_once(y: Tensor) -> Tensor:
    """Marks the result of an operator of torch whose second derivative is missing or not finite; returns it."""
    if not torch.compiler.is_compiling() and y.grad_fn is not None:
        y.grad_fn.register_prehook(_refuse_graph)
    return y


_REFUSAL = (
    "The backward pass of this layer is written out for one gradient at a time and has no derivative; compute the "
    "layer inside `with subquad.plain_operators():` for gradients of gradients and batches of gradients."
)


def _refuse_graph(*_: Any) -> None:
    if torch.is_grad_enabled():
        raise UserError(_REFUSAL)


def _is_batch(gradient: Tensor) -> bool:
    """Whether this is a batch of gradients for torch.func or, by its older implementation, for `is_grads_batched`."""
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(gradient) or functorch.is_batchedtensor(gradient)
