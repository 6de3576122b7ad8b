"""Work on many pieces at once with a result that does not depend on how many threads share it."""

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Generator[Result, None, None]:
    """`map(function, items)` by `workers` threads, a few items ahead of the reader; `items` may be endless.

    Threads share the cores as long as `function` spends its time inside numpy, which lets other threads run. Close the
    iterator to stop early. An exception of `function` is raised in its item's turn.
    """
    rest = iter(items)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            queue = collections.deque(pool.submit(function, item) for item in itertools.islice(rest, 2 * workers))
            while queue:
                yield queue.popleft().result()
                queue.extend(pool.submit(function, item) for item in itertools.islice(rest, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """`map(function, items)` by processes of their own, for work that stays inside Python; the function must pickle.

    With one worker, or one item, everything happens in this process.
    """
    chosen = list(items)
    if min(workers, len(chosen)) <= 1:
        yield from map(function, chosen)
        return
    # Fresh processes: a fork would copy locks that this one's threads hold.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(workers, len(chosen)), mp_context=context) as pool:
        try:
            yield from pool.map(function, chosen)
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function that reports how many of `total` are done; drawn on stderr, and only on a terminal."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)
