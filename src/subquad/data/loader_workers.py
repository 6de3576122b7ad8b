"""Processes that load data, and signals that are meant for the run."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader


class Loader(DataLoader[Any]):
    """A DataLoader whose workers end at SIGTERM only where the process that started them sends it.

    Slurm, `timeout` and service managers send SIGTERM to every process of a job. A worker that ends then makes the run
    fail, where the run itself goes on (Slurm) or stops in order (elsewhere). torch looks at the sender too, but lets
    the worker die where it is another. A worker whose parent is gone ends by torch's own watch.
    """

    def __iter__(self) -> Any:
        self.worker_init_fn = _end_with_the_parent
        with _held_back():
            return super().__iter__()


@contextmanager
def _held_back() -> Iterator[None]:
    """Inside the block SIGTERM waits. Processes started there keep that, with threads that libraries start in them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_the_parent(worker: int) -> None:
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_wait, args=(os.getppid(),), daemon=True).start()
    else:  # macOS
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _wait(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
