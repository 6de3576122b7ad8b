"""A DataLoader whose workers ignore signals that are meant for the run."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader


class Loader(DataLoader[Any]):
    """A DataLoader whose workers end at SIGTERM only if their parent process sent it.

    Slurm, `timeout` and service managers send SIGTERM to every process of a job. The run itself continues (Slurm) or
    stops in order (elsewhere), but fails if a worker has ended; torch ends a worker at SIGTERM from any sender. torch
    also ends a worker whose parent has gone.
    """

    def __iter__(self) -> Any:
        self.worker_init_fn = _end_with_parent
        with _sigterm_blocked():
            return super().__iter__()


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Blocks SIGTERM. Processes that are started inside inherit this, including threads that libraries start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent(worker: int) -> None:
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_exit_at_sigterm_of, args=(os.getppid(),), daemon=True).start()
    else:  # macOS
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _exit_at_sigterm_of(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
