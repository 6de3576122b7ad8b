"""Maps a function over many items on all cores."""

import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from subquad.utils.cores import usable_cores

T = TypeVar("T")
R = TypeVar("R")

_CALLS_PER_PROCESS = 20
"""The least number of calls for which another process is started."""


def spread(function: Callable[[T], R], items: Sequence[T], meanwhile: Callable[[], None] | None = None) -> list[R]:
    """The results of a function for all items, computed in forked processes.

    `meanwhile` is called in this process while the others work. Where the items are few, or where this process has
    threads (which may hold a lock at the time of a fork), all items are computed in this process, and `meanwhile` is
    not called.
    """
    workers = min(usable_cores(), len(items) // _CALLS_PER_PROCESS + 1)
    if workers == 1 or threading.active_count() > 1:
        return [function(item) for item in items]
    # These processes end soon; without garbage collection they take a quarter less time.
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=gc.disable) as pool:
        results = pool.map(function, items, chunksize=max(8, len(items) // (4 * workers)))
        if meanwhile is not None:
            meanwhile()
        return list(results)
