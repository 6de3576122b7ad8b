"""The device whose implementation of an operation is used, where there are several."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_as_on_a_gpu = False


def on_cpu(x: Any) -> bool:
    """Whether a tensor is computed by the implementations for a CPU: it is on a CPU, and not inside `as_on_a_gpu`."""
    return x.device.type == "cpu" and not _as_on_a_gpu


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Inside, tensors on a CPU take the implementations for a GPU, whose memory can then be counted without a GPU."""
    global _as_on_a_gpu
    before, _as_on_a_gpu = _as_on_a_gpu, True
    try:
        yield
    finally:
        _as_on_a_gpu = before
