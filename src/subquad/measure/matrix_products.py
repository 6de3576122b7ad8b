"""The matrix products of a computation alone, whose time is a lower bound for the computation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_FUSED = "_scaled_dot_product_flash_attention_for_cpu"
PRODUCTS = {
    "addbmm", "addmm", "addmm_", "addmv", "baddbmm", "baddbmm_", "bmm", "convolution", "convolution_backward", "dot",
    "linear", "matmul", "mm", "mv", "_linear_pointwise", _FUSED, f"{_FUSED}_backward", "scaled_dot_product_attention",
    "short_attention", "short_attention_backward",
    "wave_state", "wave_state_backward", "wave_read", "wave_read_backward",
}  # fmt: skip
"""Operators that multiply matrices, and fused kernels that contain matrix products."""

Call = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]


class _Products(TorchDispatchMode):
    """Records the matrix products that run inside the block, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def products_of(run: Callable[[], object]) -> Callable[[], None]:
    """A program that computes the matrix products of `run` only, on tensors of the same sizes and strides.

    Tensors of equal size share one buffer, so that they are in the cache at least as often as those of `run`. The time
    is therefore a lower bound of the time of `run` with these kernels.
    """
    with _Products() as recorded:
        run()
    buffers: dict[tuple[torch.dtype, torch.device, int], Tensor] = {}

    def buffer_like(tensor: Tensor) -> Tensor:
        size = tensor.untyped_storage().nbytes() // tensor.itemsize
        key = tensor.dtype, tensor.device, size
        if key not in buffers:
            buffers[key] = torch.zeros(size, dtype=tensor.dtype, device=tensor.device)
        return buffers[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    calls = [tree_map_only(Tensor, buffer_like, call) for call in recorded.calls]

    def replay() -> None:
        with torch.inference_mode():
            for function, args, kwargs in calls:
                function(*args, **kwargs)

    return replay
