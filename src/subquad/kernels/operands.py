"""Passing tensors to kernels: checks, layouts and addresses."""

import ctypes

import torch
from torch import Tensor
from torch.autograd import forward_ad

from subquad.kernels.build import allowed, library
from subquad.utils.devices import on_cpu

VECTOR = 16
"""Floats of the longest vector register: contiguous axes must be a multiple of it."""


def fit(kernel: str, *operands: Tensor) -> bool:
    """Whether a kernel may run in this context on these operands with four axes, the last one of whole vectors."""
    return all(x.dim() == 4 and x.numel() > 0 and x.shape[3] % VECTOR == 0 for x in operands) and may_run(
        kernel, *operands
    )


def may_run(kernel: str, *operands: Tensor) -> bool:
    """Whether a kernel may run in this context on these operands: float32 tensors on a CPU."""
    return (
        eager(*operands)
        and all(x.dtype == torch.float32 for x in operands)
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._is_torch_function_mode_enabled()
        and allowed()
        and library(kernel) is not None
    )


def eager(*operands: Tensor) -> bool:
    """Whether operators compute at once on tensors on a CPU, whose derivatives are those of a backward pass."""
    return (
        all(type(x) is Tensor and on_cpu(x) for x in operands)  # subclasses that intercept operators must see torch's
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # a trace would hold the addresses of its example
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0  # no forward-mode differentiation
    )


def loaded(kernel: str) -> ctypes.CDLL:
    """The library of a kernel for which `fit` or `may_run` was true."""
    functions = library(kernel)
    assert functions is not None
    return functions


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
        setattr(structure, name, x.data_ptr())
        steps = getattr(structure, f"{name}_step", None)
        if steps is not None:
            steps[:] = x.stride()[: len(steps)]


def chunks(kernel: str, tokens: int, heads: int) -> int:
    """Number of chunks that the tokens of each head are divided into, so that every thread has work; none is empty."""
    return min(-(-tokens // loaded(kernel).tile_size()), -(-torch.get_num_threads() // heads))


def scratch(kernel: str, call: ctypes.Structure) -> Tensor:
    """Allocates scratch memory for the threads of a call and sets its address in the call."""
    memory = torch.empty(call.threads * loaded(kernel).room(ctypes.byref(call)), dtype=torch.float32, device="cpu")
    call.scratch = memory.data_ptr()
    return memory
