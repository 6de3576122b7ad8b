"""Trains many runs with one command."""

import json
import os
import signal
import socket
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
from subquad.config.overrides import as_override
from subquad.records import now, write_json
from subquad.results.cells import RunSpec
from subquad.results.footnotes import few
from subquad.sweep.monitor import Follower
from subquad.sweep.progress import Progress, Shown
from subquad.sweep.workers import signals_interrupt
from subquad.utils.display import command_line, counted

SWEEPS = "sweeps"
"""The folder of outputs with the logs of sweeps, and the lists of the runs of those that are going on."""
_STOP_TIMEOUT = 60
"""Seconds that a sweep has to end after an interrupt before it is killed."""


def train_all(jobs: Sequence[RunSpec], hydra: Sequence[str] = (), shown: Sequence[Shown] = ()) -> bool:
    """Trains all jobs in one multirun of train.py and returns whether any failed.

    Runs that others start from are trained first. Progress is shown; the output of the runs goes to a file below
    outputs/sweeps. Runs that another command is training are waited for, and trained here if it does not finish them.
    Ctrl-C and SIGTERM stop the runs at once and end the program with a message on how to continue.

    Args:
        hydra: overrides for Hydra, such as hydra/launcher=slurm.
        shown: the tables whose progress is shown.
    """
    console = Console(highlight=False)
    console.print(f"{counted(len(jobs), 'run')} {'is' if len(jobs) == 1 else 'are'} to be trained.")
    log = Path(str(compose_run(jobs[0].overrides).paths.outputs)) / SWEEPS / _log_name()
    log.parent.mkdir(parents=True, exist_ok=True)
    with _listed(jobs, log.with_suffix(".json")), log.open("w", encoding="utf-8") as file:
        follower = Follower(jobs, log.stat().st_mtime)
        progress = Progress(follower, shown, console)
        status, failures = _run_sweep(jobs, hydra, file, progress)
        failed = {**failures}
        while busy := trained_elsewhere([job for job in jobs if job.command in failures]):
            console.print(f"Another command is training {len(busy)} of these runs; waiting for it.")
            _wait_for(busy, progress, log)
            failed = {command: cause for command, cause in failed.items() if command not in {j.command for j in busy}}
            if not (jobs := [job for job in busy if not job.finished]):
                status = int(bool(failed))
                break
            status, failures = _run_sweep(jobs, hydra, file, progress)
            failed |= failures
    _report_failures(console, failed, follower, shown, status, log)
    return bool(failed or status)


def _log_name() -> str:
    """A name that no other sweep has, also one that started in the same second, as in an array of jobs."""
    return f"{now().replace(':', '')}-{socket.gethostname()}-{os.getpid()}.log"


@contextmanager
def _listed(jobs: Sequence[RunSpec], path: Path) -> Iterator[None]:
    """Inside the block, a file names the runs of the sweep, for the page of `report.py watch=true`."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    runs = [str(job.folder) for job in jobs]
    write_json(path, {"command": command, "host": socket.gethostname(), "process": os.getpid(), "runs": runs})
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _run_sweep(
    jobs: Sequence[RunSpec], hydra: Sequence[str], log: Any, progress: Progress
) -> tuple[int, dict[tuple[str, ...], str]]:
    """Runs a multirun; returns its exit status and the causes of its failures by the commands of the jobs."""
    with tempfile.TemporaryDirectory() as folder:
        job_file = Path(folder) / "jobs"
        job_file.write_text(_job_lines(jobs), encoding="utf-8")
        command = [
            sys.executable, "-m", "subquad.cli.train", "-m", "hydra/sweeper=job_list",
            f"hydra.sweeper.jobs={as_override(job_file)}", f"hydra.sweeper.leader={os.getpid()}", *hydra,
        ]  # fmt: skip
        status = _run_command(command, log, progress)
        failures = job_file.with_name("jobs.failed")
        lines = (
            [json.loads(line) for line in failures.read_text(encoding="utf-8").splitlines()]
            if failures.exists()
            else []
        )
    return status, {tuple(overrides): cause for overrides, cause in lines}


def trained_elsewhere(failed: Sequence[RunSpec]) -> list[RunSpec]:
    """The failed jobs that failed because another command was training them or the runs that they start from.

    Such a command holds the lock of the run's folder, or has released it and written the record since.
    """
    busy = [job for job in failed if job.finished or is_locked(job.folder)]
    folders = {job.folder for job in busy}
    return [job for job in failed if job in busy or (job.init_from is not None and job.init_from.folder in folders)]


def is_locked(folder: Path) -> bool:
    """Whether a process is training the run of a folder at this moment."""
    lock = folder / ".lock"
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
        with signals_interrupt(), progress:
            while any(is_locked(job.folder) for job in busy):
                progress.look()
                time.sleep(0.5)
    except KeyboardInterrupt:
        raise SystemExit(f"Stopped: {progress.summary()}. {_how_to_continue(log)}") from None


def _job_lines(jobs: Sequence[RunSpec]) -> str:
    """Content of the sweeper's job file, with an empty line before the jobs that start from another of them."""
    folders = {job.folder for job in jobs}
    later = [job for job in jobs if job.init_from is not None and job.init_from.folder in folders]
    first = [job for job in jobs if job not in later]
    return "\n".join("".join(json.dumps(job.command) + "\n" for job in stage) for stage in (first, later) if stage)


def _run_command(command: Sequence[str], file: Any, progress: Progress) -> int:
    """Runs a command and shows its progress; returns its exit status.

    The command has a process group of its own, so that Ctrl-C does not reach it twice, from the terminal and from here.
    """
    with (
        signals_interrupt(),
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
            raise SystemExit(f"Stopped: {progress.summary()}. {_how_to_continue(Path(file.name))}") from None


def _how_to_continue(log: Path) -> str:
    """How to continue a stopped sweep. The Slurm launcher, whose jobs outlive it, writes this into its log."""
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        if "scancel" in line:
            return line.removeprefix("Interrupted. ")
    return "Nothing is lost; the same command continues from here."


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_TIMEOUT)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()


def _report_failures(
    console: Console, failed: Mapping[tuple[str, ...], str], follower: Follower, shown: Sequence[Shown], status: int,
    log: Path,
) -> None:  # fmt: skip
    """Prints each failed run with its cells, cause and command, or the end of the log if the sweep itself failed."""
    folders = {job.command: job.folder for job in follower.jobs if job.command in failed}
    for overrides, cause in failed.items():
        cells = few([cell for table in shown for cell in table.filled_by([folders[overrides]])])
        command = command_line("python train.py", overrides)
        console.print(f"Failed{cells and f' ({cells})'}: {cause}\n  {command}", soft_wrap=True, markup=False)
    if failed:
        console.print(
            f"{len(failed)} of {counted(len(follower.jobs), 'run')} failed; the same command tries them again ({log})."
        )
    elif status:
        last = "\n".join(log.read_text(encoding="utf-8").splitlines()[-10:])
        console.print(
            f"The sweep failed (status {status}); the same command continues it. {log} ends with\n{last}", markup=False
        )
