"""A DataLoader whose workers neither end by signals that are meant for the run nor let it wait for ever."""

import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import queues, util
from typing import Any

from torch.utils.data import DataLoader

from subquad.utils.errors import UserError

LONGEST_FOLDER = 70
"""Bytes of a folder of sockets: the path of a socket has 103 at most (macOS), its name in the folder up to 32."""


class Loader(DataLoader[Any]):
    """A DataLoader whose workers end at SIGTERM only if their parent process sent it.

    Slurm, `timeout` and service managers send SIGTERM to every process of a job. The run itself continues (Slurm) or
    stops in order (elsewhere), but fails if a worker has ended; torch ends a worker at SIGTERM from any sender. torch
    also ends a worker whose parent has gone.

    Args:
        at_sigterm: called at SIGTERM while the run waits for a batch, after the handler of the run; may raise.
    """

    def __init__(self, *args: Any, at_sigterm: Callable[[], None] = lambda: None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.worker_init_fn = _prepare_worker
        self.at_sigterm = at_sigterm

    def __iter__(self) -> Any:
        if self.num_workers == 0:
            return super().__iter__()
        _choose_folder_of_sockets()
        with _sigterm_blocked():
            batches = super().__iter__()
        return _Batches(batches, self.at_sigterm)


class _Batches:
    def __init__(self, batches: Iterator[Any], at_sigterm: Callable[[], None]) -> None:
        self.batches, self.at_sigterm = batches, at_sigterm

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._ended_by_sigterm():
            return next(self.batches)

    @contextmanager
    def _ended_by_sigterm(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return

        def end(number: int, frame: Any) -> None:
            before(number, frame)
            self.at_sigterm()

        signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _choose_folder_of_sockets() -> None:
    """Workers pass tensors through sockets in a folder that multiprocessing makes once, below TMPDIR."""
    before = tempfile.gettempdir()
    if len(os.fsencode(before)) > LONGEST_FOLDER - len("/pymp-12345678"):
        tempfile.tempdir = "/tmp"
    try:
        folder = util.get_temp_dir()
    except OSError:
        folder = before
    finally:
        tempfile.tempdir = before
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        raise UserError(
            f"Loader processes cannot start: the path of TMPDIR, {before}, is too long for sockets; set TMPDIR to a "
            "shorter path, or data.num_workers=0."
        )


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Blocks SIGTERM. Processes that are started inside inherit this, including threads that libraries start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker(worker: int) -> None:
    queues.Queue._on_queue_feeder_error = staticmethod(_exit_at_error)  # type: ignore[attr-defined]
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_exit_at_sigterm_of, args=(os.getppid(),), daemon=True).start()
    else:  # macOS
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _exit_at_sigterm_of(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def _exit_at_error(error: BaseException, batch: Any) -> None:
    """A batch that cannot be sent would be left out without a word, and the run would wait for it."""
    traceback.print_exception(error)
    os._exit(1)
