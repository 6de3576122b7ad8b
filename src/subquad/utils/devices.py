"""What depends on the device of an operation: its implementation, how much it computes at a time, torch's switches.

On a CPU, intermediate results should stay in the cache. On a GPU, each operator costs a launch and reads and writes all
of its operands, so that few operators on much data are fastest. Code asks `on_cpu` where there are two ways to compute
the same, and `x.is_cuda` only where a kernel exists for CUDA alone.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.backends import cudnn

from subquad.utils.derivatives import seen_by_torch
from subquad.utils.errors import UserError

Float32Precision = Literal["highest", "high", "medium"]
"""As in `torch.set_float32_matmul_precision`: float32, TF32, bfloat16 for products of float32 numbers."""

P = ParamSpec("P")
T = TypeVar("T")

_as_on_a_gpu = False


def on_cpu(x: Any) -> bool:
    """Whether a tensor is computed by the implementations for a CPU: it is on a CPU, and not inside `as_on_a_gpu`."""
    return x.device.type == "cpu" and not _as_on_a_gpu


def on_gpu(x: Any) -> bool:
    """Whether a tensor is computed by the implementations for a GPU; the device "meta" has none of its own."""
    return not on_cpu(x) and not x.is_meta


def eager_on_gpu(x: Tensor) -> bool:
    """Whether x, which is not empty, takes operators for a GPU whose derivative is written out.

    Then nothing traces or transforms operators.
    """
    return on_gpu(x) and not seen_by_torch() and x.numel() > 0


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Inside, tensors on a CPU take the implementations for a GPU, whose memory can then be counted without a GPU."""
    global _as_on_a_gpu
    before, _as_on_a_gpu = _as_on_a_gpu, True
    try:
        yield
    finally:
        _as_on_a_gpu = before


GPU_NUMBERS = 1 << 28
"""Numbers of an intermediate result on a GPU: 1 GiB in fp32. A constant, so that results do not depend on the GPU."""


def at_once(x: Tensor, of_cpu: int, numbers: int) -> int:
    """Items that an operation on x computes at a time, at least 1.

    Args:
        of_cpu: their number on a CPU.
        numbers: size of the largest intermediate result per item; on a GPU, GPU_NUMBERS of these are held.
    """
    return of_cpu if on_cpu(x) else max(1, GPU_NUMBERS // max(1, numbers))


def processors(x: Tensor) -> int:
    """Streaming multiprocessors of a tensor's GPU; those of an H100 where it cannot be asked."""
    if torch.compiler.is_compiling() or not torch.cuda.is_available() or not x.is_cuda:
        return 132
    count: int = torch.cuda.get_device_properties(x.device).multi_processor_count
    return count


def fused(function: Callable[P, T]) -> Callable[P, T]:
    """A function of elementwise operators and reductions that a GPU runs as one kernel, compiled at its first call."""

    @cache
    def compiled() -> Callable[P, T]:
        return torch.compile(function, dynamic=True)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # A fake device for tests has no compiler.
        on_gpu = isinstance(args[0], Tensor) and args[0].is_cuda and torch.cuda.is_available()
        return (compiled() if on_gpu else function)(*args, **kwargs)

    return call


def chosen_device(setting: str) -> str:
    """The device of a setting: "auto" is a GPU where there is one. Raises UserError for "cuda" where there is none."""
    if setting == "cuda" and not torch.cuda.is_available():
        raise UserError(f"torch {torch.__version__} finds no CUDA device; install a driver and a torch for CUDA.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if setting == "auto" else setting


@contextmanager
def torch_settings(precision: Float32Precision = "highest", cudnn_attention: bool = False) -> Iterator[None]:
    """Sets torch's global switches inside the block: those of a training run, and so of what is timed beside it.

    Args:
        precision: of matrix products and convolutions of float32 numbers on a GPU.
        cudnn_attention: whether `scaled_dot_product_attention` may use cuDNN.
    """
    switches: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = [
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision),
        (partial(getattr, cudnn, "allow_tf32"), partial(setattr, cudnn, "allow_tf32"), precision != "highest"),
        (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, cudnn_attention),
    ]
    with switched(switches):
        yield


@contextmanager
def switched(switches: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]]) -> Iterator[None]:
    """Writes values to global settings, each given with a function that reads and one that writes it; restores them."""
    with ExitStack() as stack:
        for read, write, value in switches:
            stack.callback(write, read())
            write(value)
        yield
