"""How tensors reach a kernel: which may, and where they lie."""

import ctypes

import torch
from torch import Tensor
from torch.autograd import forward_ad

from subquad.kernels.build import allowed, library

VECTOR = 16
"""Numbers of the longest vector: axes whose numbers lie side by side are a multiple of it."""


def fit(kernel: str, *operands: Tensor) -> bool:
    """Whether a kernel may run here, on these operands of heads: of four axes each, the last of whole vectors."""
    return all(x.dim() == 4 and x.numel() > 0 and x.shape[3] % VECTOR == 0 for x in operands) and may_run(
        kernel, *operands
    )


def may_run(kernel: str, *operands: Tensor) -> bool:
    """Whether a kernel may run here, on these operands: in single precision, on a CPU."""
    return (
        all(type(x) is Tensor for x in operands)  # what watches or replaces operators gets torch's own
        and all(x.device.type == "cpu" and x.dtype == torch.float32 for x in operands)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._is_torch_function_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0  # no tangents are carried
        and allowed()
        and library(kernel) is not None
    )


def loaded(kernel: str) -> ctypes.CDLL:
    """The functions of a kernel that `fit` has found."""
    functions = library(kernel)
    assert functions is not None
    return functions


def rows(x: Tensor) -> Tensor:
    """The tensor with the numbers of its last axis side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def like(x: Tensor) -> Tensor:
    """Memory for a gradient that lies as its operand does, the numbers of its last axis side by side."""
    y = torch.empty_like(x)
    return y if y.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def point(structure: ctypes.Structure, **operands: Tensor) -> None:
    """Writes where each operand lies, and as many of its strides as `<name>_step` of the structure takes, if any.

    The structure keeps no tensor alive.
    """
    for name, x in operands.items():
        setattr(structure, name, x.data_ptr())
        steps = getattr(structure, f"{name}_step", None)
        if steps is not None:
            steps[:] = x.stride()[: len(steps)]


def chunks(kernel: str, tokens: int, heads: int) -> int:
    """Into how many parts the tokens of each head are cut, so that every thread has some; none of them is empty."""
    return min(-(-tokens // loaded(kernel).tile_size()), -(-torch.get_num_threads() // heads))


def scratch(kernel: str, call: ctypes.Structure) -> Tensor:
    """Memory for the call's threads, which the call then names."""
    memory = torch.empty(call.threads * loaded(kernel).room(ctypes.byref(call)), dtype=torch.float32, device="cpu")
    call.scratch = memory.data_ptr()
    return memory
