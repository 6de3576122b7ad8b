"""Processes that train the runs of a sweep in parallel, forked from a process that has done the imports."""

import atexit
import ctypes
import gc
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

from hydra.utils import get_object

from subquad import records
from subquad.config.own_code import own_code, targets
from subquad.utils.cores import usable_cores, usable_threads
from subquad.utils.errors import UserError
from subquad.utils.free_memory import memory_of_worker, shared_gpu
from subquad.utils.killed import why_killed

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit status of an interrupted run."""

_FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOP_TIMEOUT = 30
"""Seconds that an interrupted run has to end before it is killed."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Task = Callable[[Callable[[Path], None]], Any]
"""A run. It is called with a function that it must call with its folder; its result must be picklable."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Number of parallel runs and the resources of each.

    Attributes:
        count: number of runs that train at a time.
        threads: number of threads of each run.
        gpus: value of CUDA_VISIBLE_DEVICES for each worker; empty without GPUs.
    """

    count: int
    threads: int
    gpus: tuple[str, ...] = ()

    def environment(self, index: int) -> dict[str, str]:
        """Environment variables of a worker, numbered from 0."""
        threads = {"OMP_NUM_THREADS": str(self.threads)}
        if not self.gpus:
            return threads
        own = self.gpus[index]
        return {**threads, "CUDA_VISIBLE_DEVICES": own, **shared_gpu(self.gpus.count(own))}


def workers_for(setting: Any, trainer: Mapping[str, Any], runs: int) -> Workers:
    """Determines the workers for a number of runs. The cores are divided among the workers.

    Args:
        setting: sweep.workers. "auto" means one worker for each core on a CPU, and one for each GPU on GPUs. A number
            is the number of workers on a CPU, and the number for each GPU on GPUs.
        trainer: settings of the trainer. Runs on several devices train one at a time.

    Raises:
        UserError: the setting is neither "auto" nor a positive number.
    """
    if setting != "auto" and (type(setting) is not int or setting < 1):
        raise UserError(f"sweep.workers is {setting}; it takes auto, or a whole number of at least 1.")
    if trainer["devices"] != 1 or trainer["num_nodes"] != 1:
        return Workers(1, usable_threads())
    gpus = _gpus() if trainer["accelerator"] in ("auto", "gpu", "cuda") else []
    if gpus:
        setting = len(gpus) * (1 if setting == "auto" else setting)
    count = max(1, min(runs, usable_cores() if setting == "auto" else setting))
    gpu_of_worker = tuple(gpus[index % len(gpus)] for index in range(count)) if gpus else ()
    return Workers(count, min(usable_threads(), max(1, usable_cores() // count)), gpu_of_worker)


def _gpus() -> list[str]:
    """The CUDA devices of this machine, by their names in CUDA_VISIBLE_DEVICES.

    They are counted in a separate process, because a process that has initialised CUDA cannot fork others that use it.
    """
    with _single_threaded_imports():
        import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return []
    assert _FORK is not None
    process = _FORK.Process(target=lambda: os._exit(min(torch.cuda.device_count(), 255)))
    process.start()
    process.join()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = names.split(",") if names else list(map(str, range(256)))
    return visible[: max(0, process.exitcode or 0)]


def import_for(config: Any) -> None:
    """Imports the modules that a run of this configuration needs, so that forked processes have them loaded."""
    own_code(config)  # a run refuses code that is changed after this
    with _single_threaded_imports():
        for name in ("subquad.training.run", "subquad.training.evaluation", "matplotlib.pyplot"):
            importlib.import_module(name)
        for target in targets(config):
            with suppress(Exception):  # the run itself reports it
                get_object(target)

        from subquad.measure import machine

        machine.source()  # so is a change of Subquad's own code noted
    gc.freeze()  # otherwise the garbage collector of each forked process touches, and so copies, all shared memory


@contextmanager
def _single_threaded_imports() -> Iterator[None]:
    """Keeps libraries from starting threads when they are imported, because threads do not survive a fork."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def run_all(
    tasks: Mapping[int, Task], workers: Workers, on_start: Callable[[int], None],
    on_end: Callable[[int, Any, str | None], None],
) -> None:  # fmt: skip
    """Runs every task in a process of its own, in order, as many at a time as there are workers.

    The output of a task is shown line by line, prefixed with its number. A single worker in a terminal writes to it
    directly, so that it can show a progress bar. Must be called inside `interruptible`. An interrupt of this process or
    of a task ends all of them.

    Args:
        tasks: tasks by number.
        on_start: called with the number of a task when it starts.
        on_end: called with the number of a task, its result, and, if there is no result, the reason why its process
            ended, which is also written to the folder of the run.
    """
    inherit = workers.count == 1 and sys.stderr.isatty()
    memory = memory_of_worker(workers.count)
    waiting = list(tasks.items())
    free = list(range(workers.count))
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and free:
                number, task = waiting.pop(0)
                on_start(number)
                with _blocked_signals():  # until the process is listed as running and has handlers of its own
                    running.append(_Worker(number, task, free.pop(0), workers, memory, inherit))
            wait([worker.connection for worker in running], timeout=0.1)
            for worker in [worker for worker in running if worker.look()]:
                on_end(worker.number, worker.result, worker.cause())
                running.remove(worker)
                free.append(worker.index)
                worker.close()
    except BaseException as error:
        _stop(running)
        if isinstance(error, KeyboardInterrupt) and inherit and running:  # the run itself has reported it
            raise SystemExit(INTERRUPTED) from None
        raise


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does.

    Signals that are ignored (nohup) or handled already (a job of Slurm) are left as they are.
    """

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    before = {number: signal.signal(number, interrupt) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block, Ctrl-C and the signals of `signals_interrupt` end the program and say how to continue."""
    try:
        with signals_interrupt():
            yield
    except KeyboardInterrupt:
        log.warning("Interrupted; the same command continues with the runs that have not finished.")
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Delays interrupts until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """The process of one run, with its result and output."""

    def __init__(
        self, number: int, task: Task, index: int, workers: Workers, memory: Mapping[str, str], inherit: bool
    ) -> None:
        assert _FORK is not None
        self.number, self.index = number, index
        self.result: Any = None
        self.folder: Path | None = None
        self.outputs = [] if inherit else [_Output(stream, f"#{number} | ") for stream in (sys.stdout, sys.stderr)]
        self.connection, sender = _FORK.Pipe(duplex=False)
        arguments = (task, sender, self.outputs, {**workers.environment(index), **memory}, os.getpid())
        self.process = _FORK.Process(target=_in_child, args=arguments, name=f"run {number}")
        self.process.start()
        sender.close()

    def look(self) -> bool:
        """Shows new output of the process and reads its messages; returns whether the process has ended."""
        ended = not self.process.is_alive()  # checked first, so that the output of an ended process is complete
        with suppress(EOFError):
            while self.connection.poll():
                attribute, value = self.connection.recv()
                setattr(self, attribute, value)
        for output in self.outputs:
            output.show(ended)
        return ended

    def close(self) -> None:
        """Releases the resources of a process that has ended."""
        self.connection.close()
        self.process.close()
        for output in self.outputs:
            output.file.close()

    def cause(self) -> str | None:
        """Why the process ended without a result, which is also written to the folder of its run; None with a result.

        Raises KeyboardInterrupt if the process was interrupted.
        """
        code = self.process.exitcode
        if self.result is not None:
            return None
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        cause = f"The process of this run ended with status {code} before the run had finished."
        if code is not None and code < 0:
            hint = f", {why_killed(self.folder)}" if -code == signal.SIGKILL else ""
            cause = f"The process of this run was ended by {signal.Signals(-code).name}{hint}."
        if self.folder is not None:
            with suppress(OSError):  # as on a full disk
                records.write_error(cause, "\n".join(output.last for output in self.outputs), self.folder)
        return cause


class _Output:
    """Output of a process on one of its streams: a file, whose complete lines are copied to a stream of the parent."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self.stream, self.prefix, self.encoding = stream, prefix, stream.encoding or "utf-8"
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  open until the process has ended
        self.shown = 0
        self.last = ""
        """The last lines, up to 4,000 characters."""

    def take(self, number: int) -> TextIO:
        """Redirects a file descriptor of this process to the file; returns a stream for it."""
        os.dup2(self.file.fileno(), number)
        return os.fdopen(number, "w", 1, self.encoding, "replace", closefd=False)

    def show(self, ended: bool) -> None:
        """Copies new complete lines; if the process has `ended`, also an incomplete last line."""
        text = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size - self.shown, self.shown)
        length = len(text) if ended else text.rfind(b"\n") + 1
        self.shown += length
        lines = text[:length].decode(self.encoding, "backslashreplace").splitlines()
        self.stream.write("".join(f"{self.prefix}{line}\n" for line in lines))
        self.stream.flush()
        self.last = "\n".join([self.last, *lines])[-4000:]


def end_with_parent() -> None:
    """Has Linux kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _in_child(
    task: Task, connection: "Connection[Any, Any]", outputs: Sequence[_Output], environment: Mapping[str, str],
    parent: int,
) -> None:  # fmt: skip
    """Runs a task in the process forked for it. The system kills the process when its parent ends."""
    atexit._clear()  # inherited from the parent, which runs them itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then sends SIGTERM
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:  # ignored in jobs of Slurm
        signal.signal(signal.SIGTERM, _interrupt_once())
    end_with_parent()
    if os.getppid() != parent:
        os._exit(INTERRUPTED)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        os.environ.update(environment)
        if outputs:
            sys.stdout, sys.stderr = (output.take(number) for number, output in enumerate(outputs, start=1))
        result = task(lambda folder: connection.send(("folder", folder)))
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
        connection.send(("result", result))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _interrupt_once() -> Callable[..., None]:
    """A handler that raises KeyboardInterrupt for the first signal only, so that the cleanup is not interrupted."""
    interrupted = False

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    return interrupt


def _stop(running: Sequence[_Worker]) -> None:
    """Interrupts the runs and waits for them; kills those that do not end in time, or all at a second interrupt."""
    end = time.monotonic() + _STOP_TIMEOUT
    try:
        for worker in running:
            worker.process.terminate()
        for worker in running:
            worker.process.join(max(0.0, end - time.monotonic()))
    except KeyboardInterrupt:
        pass
    for worker in running:
        worker.process.kill()
        worker.process.join()
        worker.close()
