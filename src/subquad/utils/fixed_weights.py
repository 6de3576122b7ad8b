"""Results that depend on weights alone, computed once for many forward passes."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Products = dict[Hashable, tuple[tuple[Tensor, ...], Any]]
"""What is kept: by layer and purpose, the tensors that a result was computed of, and the result."""

_kept: ContextVar[Products | None] = ContextVar("results kept for later passes", default=None)


@contextmanager
def fixed_weights(products: Products | None = None) -> Iterator[None]:
    """Inside, passes without gradients compute what depends on the weights alone once; no weight may change inside.

    On a GPU, small products take as long to start as large ones, so that this makes short inputs faster. Nothing is
    kept where gradients are computed, in other threads, nor after the block.

    Args:
        products: keeps the results here for later blocks with the same weights.

    Examples:
        >>> import torch
        >>> from subquad import DBA, fixed_weights
        >>> layer = DBA(dim=64, heads=4, max_len=512).eval()
        >>> with fixed_weights(), torch.inference_mode():
        ...     results = [layer(torch.randn(2, length, 64)) for length in (300, 400)]
    """
    before = _kept.set({} if products is None else products)
    try:
        yield
    finally:
        _kept.reset(before)


def keeps_products() -> bool:
    """Whether this pass may keep results for later ones; not if it is compiled: CUDA graphs overwrite results."""
    return not torch.compiler.is_compiling() and not torch.is_grad_enabled() and _kept.get() is not None


def once(key: Hashable, compute: Callable[[], T], *of: Tensor) -> T:
    """`compute()`, or what it returned for this key and these very tensors if `keeps_products`."""
    kept = _kept.get() if keeps_products() else None
    if kept is None:
        return compute()
    before = kept.get(key)
    if before is None or len(before[0]) != len(of) or any(a is not b for a, b in zip(before[0], of, strict=True)):
        before = kept[key] = of, compute()
    result: T = before[1]
    return result
