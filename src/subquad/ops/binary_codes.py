"""Marks tensors that are binary codes, so that a counter of operations can tell additions from multiplications."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

_observers: list[Callable[[Tensor], None]] = []


def code(x: Tensor) -> Tensor:
    """Marks the entries of x as ±1, or as 0 and 1, so that products with x need additions only; returns x."""
    for observer in _observers:
        observer(x)
    return x


@contextmanager
def observe_codes(observer: Callable[[Tensor], None]) -> Iterator[None]:
    """Within the context, `observer` is called with every tensor passed to `code`."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
