"""Which tensors are binary codes, said where they are made, so that a counter of operations can know."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

_listeners: list[Callable[[Tensor], None]] = []


def code(x: Tensor) -> Tensor:
    """Returns x, and says that its entries are ±1, or 0 and 1: products with it need additions only."""
    for listener in _listeners:
        listener(x)
    return x


@contextmanager
def hearing(listener: Callable[[Tensor], None]) -> Iterator[None]:
    """Inside the block, `listener` is called with every tensor that is said to be a code."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
