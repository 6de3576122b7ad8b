"""Processes that train the runs of a sweep side by side, each forked from one that has imported what they need."""

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
from subquad.utils.cores import usable_cores, usable_threads
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit status of a run that was stopped from outside."""

_FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 30
"""Seconds that an interrupted run has to end."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Task = Callable[[Callable[[Path], None]], Any]
"""A run. It is given a function that it tells its folder, and returns what can be pickled."""


@dataclass(frozen=True, slots=True)
class Workers:
    """How many runs train at a time and what each may use.

    threads: of each run; gpus: what CUDA_VISIBLE_DEVICES is for the first worker, the second, ...; empty without GPUs.
    """

    count: int
    threads: int
    gpus: tuple[str, ...] = ()

    def environment(self, place: int) -> dict[str, str]:
        """Variables of the worker with this number (from 0)."""
        threads = {"OMP_NUM_THREADS": str(self.threads)}
        return threads | ({"CUDA_VISIBLE_DEVICES": self.gpus[place]} if self.gpus else {})


def workers_for(asked: Any, trainer: Mapping[str, Any], runs: int) -> Workers:
    """Workers for this many runs; `asked` is sweep.workers, `trainer` the settings of trainer=.

    On a CPU there are as many workers as cores, or as asked for; on GPUs one for each GPU, or as many for each as asked
    for. A run on several devices gets the machine for itself. The cores are divided among the workers.
    Raises UserError at a number of workers that is none.
    """
    if asked != "auto" and (type(asked) is not int or asked < 1):
        raise UserError(f"sweep.workers is {asked}; it takes auto, or a whole number of at least 1.")
    if trainer["devices"] != 1 or trainer["num_nodes"] != 1:
        return Workers(1, usable_threads())
    gpus = _gpus() if trainer["accelerator"] in ("auto", "gpu", "cuda") else []
    if gpus:
        asked = len(gpus) * (1 if asked == "auto" else asked)
    count = max(1, min(runs, usable_cores() if asked == "auto" else asked))
    places = tuple(gpus[place % len(gpus)] for place in range(count)) if gpus else ()
    return Workers(count, min(usable_threads(), max(1, usable_cores() // count)), places)


def _gpus() -> list[str]:
    """The CUDA devices of this machine, by what CUDA_VISIBLE_DEVICES calls them.

    Counted by a process of its own: one that has asked CUDA cannot fork others that use it.
    """
    with _loading():
        import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return []
    assert _FORK is not None
    process = _FORK.Process(target=lambda: os._exit(min(torch.cuda.device_count(), 255)))
    process.start()
    process.join()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    known = names.split(",") if names else list(map(str, range(256)))
    return known[: max(0, process.exitcode or 0)]


def import_for(config: Any) -> None:
    """Imports what a run of this configuration imports, so that processes forked from this one have it at once."""
    with _loading():
        for name in ("subquad.training.run", "subquad.training.evaluation", "matplotlib.pyplot"):
            importlib.import_module(name)
        for target in _targets(config):
            with suppress(Exception):  # which a run says better
                get_object(target)
    gc.freeze()  # the collector of a forked process would read, and so copy, all that was imported


def _targets(node: Any) -> Iterator[str]:
    """Every `_target_` of a configuration of plain dictionaries and lists."""
    if isinstance(node, dict):
        if isinstance(target := node.get("_target_"), str):
            yield target
        node = list(node.values())
    for part in node if isinstance(node, list) else ():
        yield from _targets(part)


@contextmanager
def _loading() -> Iterator[None]:
    """Inside the block, libraries start no threads when they are loaded: those would not live on in a fork."""
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
    tasks: Mapping[int, Task],
    workers: Workers,
    begun: Callable[[int], None],
    ended: Callable[[int, Any, str | None], None],
) -> None:
    """Runs every task in a process of its own, in their order, as many at a time as there are workers.

    `begun` is told the number of a task, its key; `ended` its number and what it returned, or why its process ended
    without; that is also kept in the folder of the run. What a task prints is shown line by line with its number,
    except for the progress bar of a terminal where tasks run one after another.

    Use it inside `interruptible`. An interrupt of this process, or of one of the others, ends all of them.
    """
    inherit = workers.count == 1 and sys.stderr.isatty()
    waiting = list(tasks.items())
    free = list(range(workers.count))
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and free:
                number, task = waiting.pop(0)
                begun(number)
                with _signals_held():  # until it can be stopped, and has handlers of its own
                    running.append(_Worker(number, task, free.pop(0), workers, inherit))
            wait([worker.connection for worker in running], timeout=0.1)
            for worker in [worker for worker in running if worker.look()]:
                ended(worker.number, worker.result, worker.cause())
                running.remove(worker)
                free.append(worker.place)
                worker.close()
    except BaseException as error:
        _stop(running)
        if isinstance(error, KeyboardInterrupt) and inherit and running:  # the run has said it
            raise SystemExit(INTERRUPTED) from None
        raise


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block Ctrl-C, SIGTERM and a closed terminal end the program, in a sentence on how to go on."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        log.warning("Interrupted; the same command goes on with the runs that have not finished.")
        raise SystemExit(INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Inside the block, interrupts wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """The process of one run and what is known of it."""

    def __init__(self, number: int, task: Task, place: int, workers: Workers, inherit: bool) -> None:
        assert _FORK is not None
        self.number, self.place = number, place
        self.result: Any = None
        self.folder: Path | None = None
        self.outputs = [] if inherit else [_Output(stream, f"#{number} | ") for stream in (sys.stdout, sys.stderr)]
        self.connection, sender = _FORK.Pipe(duplex=False)
        arguments = (task, sender, self.outputs, workers.environment(place), os.getpid())
        self.process = _FORK.Process(target=_in_child, args=arguments, name=f"run {number}")
        self.process.start()
        sender.close()

    def look(self) -> bool:
        """Shows what the process has printed and reads what it has told; whether it has ended."""
        dead = not self.process.is_alive()  # first: all that it wrote is there then
        with suppress(EOFError):
            while self.connection.poll():
                name, told = self.connection.recv()
                setattr(self, name, told)
        for output in self.outputs:
            output.show(dead)
        return dead

    def close(self) -> None:
        """Gives back what is held of a process that has ended."""
        self.connection.close()
        self.process.close()
        for output in self.outputs:
            output.file.close()

    def cause(self) -> str | None:
        """Why the process ended without a result, which is written to the folder of its run; None where it has one.

        Raises KeyboardInterrupt where it was interrupted.
        """
        code = self.process.exitcode
        if self.result is not None:
            return None
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        cause = f"The process of this run ended with status {code} before the run had."
        if code is not None and code < 0:
            more = ", as the system does where memory runs out" if -code == signal.SIGKILL else ""
            cause = f"The process of this run was ended by {signal.Signals(-code).name}{more}."
        if self.folder is not None:
            with suppress(OSError):  # as on a full disk
                records.write_error(cause, "\n".join(output.last for output in self.outputs), self.folder)
        return cause


class _Output:
    """What a process prints to one of its streams: a file, from which whole lines are copied to a stream of ours."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self.stream, self.prefix, self.encoding = stream, prefix, stream.encoding or "utf-8"
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process lives
        self.shown = 0
        self.last = ""
        """The last lines, up to 4,000 characters."""

    def take(self, number: int) -> TextIO:
        """Makes this process print here what it prints to a file descriptor; the stream to print with."""
        os.dup2(self.file.fileno(), number)
        return os.fdopen(number, "w", 1, self.encoding, "replace", closefd=False)

    def show(self, all_of_it: bool) -> None:
        """Copies the lines that are new; with `all_of_it` also a last one that has no end."""
        text = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size - self.shown, self.shown)
        whole = len(text) if all_of_it else text.rfind(b"\n") + 1
        self.shown += whole
        lines = text[:whole].decode(self.encoding, "backslashreplace").splitlines()
        self.stream.write("".join(f"{self.prefix}{line}\n" for line in lines))
        self.stream.flush()
        self.last = "\n".join([self.last, *lines])[-4000:]


def _in_child(
    task: Task,
    connection: "Connection[Any, Any]",
    outputs: Sequence[_Output],
    environment: Mapping[str, str],
    parent: int,
) -> None:
    """One run, in the process forked for it, which ends with its parent however that ends."""
    atexit._clear()  # what the parent has registered is the parent's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the parent hears it too, and sends SIGTERM
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt_once())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(INTERRUPTED)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
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
    """A handler that raises KeyboardInterrupt for the first signal: what that ends must not be interrupted again."""
    told = False

    def interrupt(*_: Any) -> None:
        nonlocal told
        if not told:
            told = True
            raise KeyboardInterrupt

    return interrupt


def _stop(running: Sequence[_Worker]) -> None:
    """Interrupts the runs and waits for them to end; kills what does not, or all at another interrupt."""
    end = time.monotonic() + _PATIENCE
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
