"""What depends on the device of an operation: how much it computes at a time, and who joins elementwise operators.

On a CPU, intermediate results should stay in the cache. On a GPU, each operator costs a launch and reads and writes all
of its operands, so that few operators on much data are fastest.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from subquad.utils.devices import on_cpu

P = ParamSpec("P")
T = TypeVar("T")

GPU_NUMBERS = 1 << 28
"""Numbers of an intermediate result on a GPU: 1 GiB in fp32. A constant, so that results do not depend on the GPU."""


def at_once(x: Tensor, of_cpu: int, numbers: int) -> int:
    """Items that an operation on x computes at a time, at least 1.

    Args:
        of_cpu: their number on a CPU.
        numbers: size of the largest intermediate result per item; on a GPU, GPU_NUMBERS of these are held.
    """
    return of_cpu if on_cpu(x) else max(1, GPU_NUMBERS // max(1, numbers))


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
