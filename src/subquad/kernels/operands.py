"""Passing tensors to kernels: checks, layouts and addresses."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from subquad.kernels.build import allowed, library
from subquad.utils.derivatives import seen_by_torch
from subquad.utils.devices import on_cpu

VECTOR = 16
"""Floats of the longest vector register: contiguous axes must be a multiple of it."""


_operand_type: ContextVar[type[Tensor]] = ContextVar("type of the tensors that kernels take", default=Tensor)


@contextmanager
def shapes_only(kind: type[Tensor]) -> Iterator[None]:
    """Inside, kernels take tensors of a type that has no data: they allocate what they always do, and compute nothing.

    Their memory can thus be counted.
    """
    before = _operand_type.set(kind)
    try:
        yield
    finally:
        _operand_type.reset(before)


def operand_type() -> type[Tensor]:
    """The type of the tensors that kernels take in this context."""
    return _operand_type.get()


def tracing() -> bool:
    """Whether kernels compute nothing in this context (see `shapes_only`)."""
    return operand_type() is not Tensor


_operators = torch.library.Library("subquad", "FRAGMENT")


def operator(schema: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Registers a function as an operator of torch, which counters of operations see; returns the operator.

    Where kernels compute nothing, it is the function itself, so that all of its allocations are seen.
    """
    name = schema.partition("(")[0]
    _operators.define(schema)
    _operators.impl(name, function, "CPU")
    registered = getattr(torch.ops.subquad, name)
    return lambda *arguments: (function if tracing() else registered)(*arguments)


def fit(kernel: str, *operands: Tensor) -> bool:
    """Whether a kernel may run in this context on these operands with four axes, the last one of whole vectors."""
    return all(x.dim() == 4 and x.numel() > 0 and x.shape[3] % VECTOR == 0 for x in operands) and may_run(
        kernel, *operands
    )


def may_run(kernel: str, *operands: Tensor) -> bool:
    """Whether a kernel may run in this context on these operands: float32 tensors on a CPU.

    Torch's FlopCounterMode knows torch's operators only, so they run where it counts.
    """
    return (
        eager(*operands)
        and all(x.dtype == torch.float32 for x in operands)
        and not torch.is_autocast_enabled("cpu")
        and (tracing() or not (torch._C._is_torch_function_mode_enabled() or _counts_flops()))
        and allowed()
        and library(kernel) is not None
    )


def _counts_flops() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        type(mode).__module__ == "torch.utils.flop_counter" for mode in _get_current_dispatch_mode_stack()
    )


def eager(*operands: Tensor) -> bool:
    """Whether operators compute at once on tensors on a CPU, whose derivatives are those of a backward pass."""
    return (
        not seen_by_torch()  # a trace would hold the addresses of its example
        and all(type(x) is operand_type() and on_cpu(x) for x in operands)  # others see torch's operators
    )


def loaded(kernel: str) -> ctypes.CDLL:
    """The library of a kernel for which `fit` or `may_run` was true."""
    functions = library(kernel)
    assert functions is not None
    return functions


def run(function: Any, *arguments: Any) -> None:
    """Calls a function of a kernel."""
    if not tracing():
        function(*arguments)


def address(x: Tensor | None) -> int | None:
    """Where the numbers of a tensor are in memory."""
    return None if x is None or tracing() else x.data_ptr()


def rows(x: Tensor) -> Tensor:
    """The tensor with a contiguous last axis."""
    return x if x.stride(-1) == 1 else x.contiguous()


def like(x: Tensor) -> Tensor:
    """An empty tensor for the gradient of x, with the layout of x if its last axis is contiguous."""
    y = torch.empty_like(x)
    return y if y.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def point(structure: ctypes.Structure, **operands: Tensor) -> None:
    """Sets the address of each operand in a structure, and its first strides if the structure has `<name>_step`.

    The structure keeps no tensor alive.
    """
    for name, x in operands.items():
        setattr(structure, name, address(x))
        steps = getattr(structure, f"{name}_step", None)
        if steps is not None:
            steps[:] = x.stride()[: len(steps)]


def chunks(kernel: str, tokens: int, heads: int) -> int:
    """Number of chunks that the tokens of each head are divided into, so that every thread has work; none is empty."""
    return min(-(-tokens // loaded(kernel).tile_size()), -(-torch.get_num_threads() // heads))


def scratch(kernel: str, call: ctypes.Structure) -> Tensor:
    """Allocates scratch memory for the threads of a call and sets its address in the call."""
    room = loaded(kernel).room
    room.restype = ctypes.c_long
    memory = torch.empty(call.threads * room(ctypes.byref(call)), dtype=torch.float32, device="cpu")
    call.scratch = address(memory)
    return memory
