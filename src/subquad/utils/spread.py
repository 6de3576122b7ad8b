"""Calls a function many times, on all cores."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from subquad.utils.cores import usable_cores

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 20
"""Fewer calls than these are not worth more processes."""


def spread(function: Callable[[T], R], items: Sequence[T], meanwhile: Callable[[], None] | None = None) -> list[R]:
    """The function of each item, in copies of this process that know what it knows now.

    `meanwhile` is called in this process while they work. Where the items are few, or this process has threads (a copy
    could be made while one holds a lock), all is done in this process, and `meanwhile` is not called.
    """
    workers = min(usable_cores(), len(items) // _AT_ONCE + 1)
    if workers == 1 or threading.active_count() > 1:
        return [function(item) for item in items]
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        results = pool.map(function, items, chunksize=8)
        if meanwhile is not None:
            meanwhile()
        return list(results)
