"""Maps functions in parallel, with results that do not depend on the number of workers."""

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

    This uses several cores if `function` spends its time inside numpy, which releases the GIL. Close the iterator to
    stop early. An exception of `function` is raised when its result is requested.
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
    """`map(function, items)` by separate processes, for functions that hold the GIL; the function must be picklable.

    With one worker or one item, everything is computed in this process.
    """
    arguments = list(items)
    if min(workers, len(arguments)) <= 1:
        yield from map(function, arguments)
        return
    # Spawned, because a fork would copy locks that threads of this process hold.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(workers, len(arguments)), mp_context=context) as pool:
        try:
            yield from pool.map(function, arguments)
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, shown on a terminal only; yields a function that sets how many of `total` are done."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)
