"""Training of many runs by one command."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console

from subquad.config.compose import compose_run
from subquad.records import now
from subquad.results.cells import RunSpec
from subquad.sweep.monitor import Follower
from subquad.sweep.progress import Progress, Shown
from subquad.utils.display import as_typed

_PATIENCE = 60
"""Seconds that a stopped run has to end."""


def train_all(jobs: Sequence[RunSpec], hydra: Sequence[str] = (), shown: Sequence[Shown] = ()) -> bool:
    """One multirun of train.py over all jobs, with words for Hydra such as its launcher; whether any failed.

    Runs that others start from go first. What happens is shown; what the runs print goes to a file below
    outputs/sweeps. Runs that another command trains at the time are left to it and waited for; what it does not finish
    is trained then. Ctrl-C and SIGTERM stop the runs at once and end the program, with a sentence on how to go on.
    """
    console = Console(highlight=False)
    console.print(f"{len(jobs)} {'run is' if len(jobs) == 1 else 'runs are'} to be trained.")
    log = Path(str(compose_run(jobs[0].overrides).paths.outputs)) / "sweeps" / f"{now().replace(':', '')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        follower = Follower(jobs, log.stat().st_mtime)
        progress = Progress(follower, shown, console)
        status, failures = _swept(jobs, hydra, file, progress)
        failed = {**failures}
        while busy := trained_elsewhere([job for job in jobs if job.command in failures]):
            console.print(f"Another command trains {len(busy)} of these runs; waiting for what is left of them.")
            _wait_for(busy, progress, log)
            failed = {command: cause for command, cause in failed.items() if command not in {j.command for j in busy}}
            if not (jobs := [job for job in busy if not job.finished]):
                status = int(bool(failed))
                break
            status, failures = _swept(jobs, hydra, file, progress)
            failed |= failures
    _tell(console, failed, follower, status, log)
    return bool(failed or status)


def _swept(
    jobs: Sequence[RunSpec], hydra: Sequence[str], log: Any, progress: Progress
) -> tuple[int, dict[tuple[str, ...], str]]:
    """The exit status of a multirun, and the causes of its failures by the commands of the jobs."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "jobs"
        listed.write_text(_waves(jobs))
        command = [
            sys.executable, "-m", "subquad.cli.train", "-m", "hydra/sweeper=job_list", f"hydra.sweeper.jobs={listed}",
            f"hydra.sweeper.leader={os.getpid()}", *hydra,
        ]  # fmt: skip
        status = _followed(command, log, progress)
        failures = listed.with_name("jobs.failed")
        lines = [json.loads(line) for line in failures.read_text().splitlines()] if failures.exists() else []
    return status, {tuple(words): cause for words, cause in lines}


def trained_elsewhere(failed: Sequence[RunSpec]) -> list[RunSpec]:
    """Those of the failed jobs that failed because another command trains them, or did, or trains what they start from.

    Such a command holds the lock of the run's folder; one that let go of it meanwhile has left the record.
    """
    busy = [job for job in failed if job.finished or _held(job)]
    folders = {job.folder for job in busy}
    return [job for job in failed if job in busy or (job.init_from is not None and job.init_from.folder in folders)]


def _held(job: RunSpec) -> bool:
    """Whether a process is training a run at this moment."""
    lock = job.folder / ".lock"
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True


def _wait_for(busy: Sequence[RunSpec], progress: Progress, log: Path) -> None:
    """Returns when no other process trains any of these runs."""
    try:
        with _terminable(), progress:
            while any(map(_held, busy)):
                progress.look()
                time.sleep(0.5)
    except KeyboardInterrupt:
        raise SystemExit(f"Stopped: {progress.summary()}. {_goes_on(log)}") from None


def _waves(jobs: Sequence[RunSpec]) -> str:
    """The lines of the jobs; an empty one before those that start from another of them."""
    folders = {job.folder for job in jobs}
    later = [job for job in jobs if job.init_from is not None and job.init_from.folder in folders]
    first = [job for job in jobs if job not in later]
    return "\n".join("".join(json.dumps(job.command) + "\n" for job in wave) for wave in (first, later) if wave)


def _followed(command: Sequence[str], file: Any, progress: Progress) -> int:
    """Runs a command to its end, in a process group of its own: an interrupt reaches it once, through this program."""
    with (
        _terminable(),
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0) as process,
    ):
        try:
            with progress:
                while True:
                    try:
                        return process.wait(timeout=0.5)
                    except subprocess.TimeoutExpired:
                        progress.look()
        except KeyboardInterrupt:
            _stop(process)
            raise SystemExit(f"Stopped: {progress.summary()}. {_goes_on(Path(file.name))}") from None


def _goes_on(log: Path) -> str:
    """What becomes of a stopped sweep: a launcher whose jobs outlive it says so last in its log."""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if "scancel" in line:
            return line.removeprefix("Interrupted. ")
    return "Nothing is lost; the same command goes on from here."


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()


@contextmanager
def _terminable() -> Iterator[None]:
    """Inside the block, SIGTERM and a closed terminal are what Ctrl-C is."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(console: Console, failed: Mapping[tuple[str, ...], str], follower: Follower, status: int, log: Path) -> None:
    """Each failure with its cause and the line that tries it alone; the end of the log where the sweep broke off."""
    for words, cause in failed.items():
        command = as_typed(f"python train.py {' '.join(words)}")
        console.print(f"Failed: {cause}\n  {command}", soft_wrap=True, markup=False)
    if failed:
        console.print(f"{len(failed)} of {len(follower.jobs)} runs failed; the same command tries them again ({log}).")
    elif status:
        last = "\n".join(log.read_text().splitlines()[-10:])
        console.print(
            f"The sweep broke off (status {status}); the same command goes on. {log} ends with\n{last}", markup=False
        )
