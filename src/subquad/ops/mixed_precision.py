"""Mixed precision by one cast of all operands.

Autocast casts each operand of each product by an operator of its own: two for a linear map in the forward pass and two
in the backward pass. On a GPU, small models spend more time on starting these than on the products.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from subquad.utils.derivatives import first_order, seen_by_torch


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Inside, operands keep their types. The device "meta", which has no autocast, has nothing to switch off."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


@contextmanager
def cast_at_once(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields the tensors in the data type of autocast, which is off inside; unchanged where autocast is off already.

        with cast_at_once(x, linear.weight, linear.bias) as (x, weight, bias):
            y = F.linear(x, weight, bias)

    As under autocast, float64 stays as it is, and gradients have the data type of the tensors that were given. Softmax
    and sums inside run in the data type of their operands; torch's kernels add in float32.
    """
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        yield tensors
        return
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):  # no name for the results, so that the caller can free them
        yield cast([t.dtype if t.dtype is torch.float64 else dtype for t in tensors], tensors)


def product_type(x: Tensor) -> torch.dtype:
    """Data type of a product with x: that of autocast where it is on, except for float64."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype is not torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def cast(dtypes: Sequence[torch.dtype], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors in these data types, by one operator."""
    pairs = list(zip(tensors, dtypes, strict=True))
    if seen_by_torch():  # the compiler fuses casts with what reads them
        return tuple(t.to(dtype) for t, dtype in pairs)
    others = [i for i, (t, dtype) in enumerate(pairs) if t.dtype is not dtype]
    results = list(tensors)
    if others:
        for i, result in zip(
            others, _Cast.apply([dtypes[i] for i in others], *(tensors[i] for i in others)), strict=True
        ):
            results[i] = result
    return tuple(results)


def copy_and_cast(
    to: list[Tensor], sources: list[Tensor], others: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Copies each source to its place, and returns the others in this data type; one operator for all."""
    results = list(others)
    for i, tensor in enumerate(others):
        if tensor.dtype is not dtype:
            results[i] = torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)
            to, sources = [*to, results[i]], [*sources, tensor]
    torch._foreach_copy_(to, sources)
    return results


def written_out(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`first_order` for a backward pass whose operands have their types; autocast is off inside."""

    @wraps(backward)
    def in_given_types(ctx: Any, *gradients: Tensor | None) -> Any:
        given = next((g for g in gradients if g is not None), None)
        if given is None:  # what follows in the graph has stopped the gradient
            return (None,) * len(ctx.needs_input_grad)
        with torch.autocast(given.device.type, enabled=False):
            return backward(ctx, *gradients)

    result: Callable[..., Any] = first_order(in_given_types)
    return result


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtypes: list[torch.dtype], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [t.dtype for t in tensors]
        ctx.set_materialize_grads(False)
        results = [torch.empty_like(t, dtype=dtype) for t, dtype in zip(tensors, dtypes, strict=True)]
        torch._foreach_copy_(results, list(tensors))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        known = [(g, dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True) if g is not None]
        together = iter(cast([dtype for _, dtype in known], [g for g, _ in known]))
        return None, *(None if g is None else next(together) for g in gradients)
