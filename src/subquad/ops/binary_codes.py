"""Marks tensors that are binary codes, so that a counter of operations can tell additions from multiplications."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

_listeners: list[Callable[[Tensor], None]] = []


def code(x: Tensor) -> Tensor:
    """Returns x and tells the listeners that its entries are ±1, or 0 and 1: products with x need additions only."""
    for listener in _listeners:
        listener(x)
    return x


@contextmanager
def observe_codes(listener: Callable[[Tensor], None]) -> Iterator[None]:
    """Within the context, `listener` is called with every tensor passed to `code`."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
