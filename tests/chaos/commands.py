"""Runs commands of the project in forked processes, which saves their imports, and judges what they print."""

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = ("task=lra/listops", "scale=laptop", "data.sizes=[64,32,32]")
"""A few rows; not scale=smoke, whose runs are not kept."""

RUN = (
    *DATA, "attention=dba", "limits.steps=12", "recipe.batch_size=8", "recipe.steps_per_epoch=3", "optimizer.lr=0.01",
    "scheduler.warmup=4", "backbone.layers=1", "backbone.dim=16", "backbone.heads=2", "backbone.ffn=16", "trainer=cpu",
    "~callbacks.cores", "evaluate=[{eval_batch_size:5}]",
)  # fmt: skip
"""Four epochs of a small model on generated data, and an evaluation in batches of another size: about two seconds."""


@dataclass(frozen=True)
class Done:
    """A command that has ended. status: negative for a signal."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def unclear(self) -> str | None:
        """What is not clear in what the command said, or None."""
        if "Traceback (most recent call last)" in self.out + self.err:
            return f"traceback: {self.err.strip().splitlines()[-1:] or self.out.strip().splitlines()[-1:]}"
        if self.status > 0 and not self.err.strip() and not self.out.strip():
            return f"status {self.status} without a word"
        return None


class Command:
    """A command in a forked process."""

    def __init__(self, place: Path, *arguments: str, before: Callable[[], Any] | None = None) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.files = [place / f".{stream}" for stream in ("out", "err")]
        self.started = time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(place, arguments, before)

    def _run(self, place: Path, arguments: Sequence[str], before: Callable[[], Any] | None) -> None:
        status = 1
        try:
            os.setpgid(0, 0)
            for number, path in enumerate(self.files, start=1):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
                os.dup2(file, number)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(place)
            os.environ.update(SUBQUAD_OUTPUTS=str(place / "outputs"), SUBQUAD_DATA=str(place / "data"))
            sys.stdout, sys.stderr = (open(n, "w", 1, encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
            name, *sys.argv[1:] = arguments
            sys.argv[0] = f"{name}.py"
            if before is not None:
                before()
            from subquad.cli.command import run

            run(name)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException as error:
            traceback.print_exc()
            status = 130 if isinstance(error, KeyboardInterrupt) else 1
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def wait(self, seconds: float = 300) -> Done:
        """Waits for the end; kills the process after some seconds, which is then a hang."""
        hung = False
        while (ended := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() - self.started > seconds and not hung:
                hung = True
                self.send(signal.SIGKILL)
            time.sleep(0.005)
        took = time.monotonic() - self.started
        out, err = (path.read_text(errors="replace") if path.exists() else "" for path in self.files)
        err += "\nTraceback (most recent call last): hung" if hung else ""
        return Done(os.waitstatus_to_exitcode(ended[1]), out, err, took)

    def send(self, number: int, child: bool = False, rng: random.Random | None = None) -> None:
        """Sends a signal to the process, or to one of its children."""
        target = self.pid
        if child and rng is not None:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="utf-8").split()
                target = int(rng.choice(children)) if children else target
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)


def do(place: Path, *arguments: str, before: Callable[[], Any] | None = None, seconds: float = 300) -> Done:
    """Runs a command to its end."""
    return Command(place, *arguments, before=before).wait(seconds)


def often() -> None:
    """In the process of a command: writes the last checkpoint after every epoch instead of every ten seconds."""
    from subquad.training.callbacks.checkpoints import SpareCheckpoints

    SpareCheckpoints.__init__.__defaults__ = (0.0,)


def dies_at(step: int) -> Callable[[], None]:
    """In the process of a command: it is killed at a training step."""

    def prepare() -> None:
        from subquad.tasks.supervised import Supervised

        often()
        intact, taken = Supervised.training_step, 0

        def step_or_die(self: Any, batch: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return intact(self, batch)

        Supervised.training_step = step_or_die

    return prepare


def clean_commit() -> None:
    """In the process of a command: its source is a commit, which results need that are added to the store."""
    from subquad.measure import machine
    from subquad.results import store

    machine._commit = lambda: "abc123"
    store.FOLDER = Path.cwd() / "store"
