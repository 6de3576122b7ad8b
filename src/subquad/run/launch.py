"""Training of many runs by one command."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from subquad.records import now
from subquad.run.cells import Job
from subquad.run.doors import ROOT, compose_run
from subquad.run.follow import Follower
from subquad.run.progress import Progress, Shown

_PATIENCE = 60
"""Seconds that a stopped run has to end."""


def train_all(jobs: Sequence[Job], hydra: Sequence[str] = (), shown: Sequence[Shown] = ()) -> bool:
    """One multirun of train.py over all jobs, with words for Hydra such as its launcher; whether any failed.

    Runs that others start from go first. What happens is shown; what the runs print goes to a file below
    outputs/sweeps. Ctrl-C and SIGTERM stop the runs at once and end the program, with a sentence on how to go on.
    """
    console = Console(highlight=False)
    console.print(f"{len(jobs)} runs are to be trained.")
    log = Path(str(compose_run(jobs[0].words).paths.outputs)) / "sweeps" / f"{now().replace(':', '')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "jobs"
        listed.write_text(_waves(jobs))
        command = [
            sys.executable, str(ROOT / "train.py"), "-m", "hydra/sweeper=job_list", f"hydra.sweeper.jobs={listed}",
            f"hydra.sweeper.leader={os.getpid()}", *hydra,
        ]  # fmt: skip
        with log.open("w") as file:
            follower = Follower(jobs, log.stat().st_mtime)
            status = _followed(command, file, Progress(follower, shown, console))
        failures = listed.with_name("jobs.failed")
        failed = [json.loads(line) for line in failures.read_text().splitlines()] if failures.exists() else []
    _tell(console, failed, follower, status, log)
    return status != 0


def _waves(jobs: Sequence[Job]) -> str:
    """The lines of the jobs; an empty one before those that start from another of them."""
    folders = {job.folder for job in jobs}
    later = [job for job in jobs if job.start is not None and job.start.folder in folders]
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


def _tell(
    console: Console, failed: Sequence[tuple[list[str], str]], follower: Follower, status: int, log: Path
) -> None:
    """Each failure with its cause and the line that tries it alone; the end of the log where the sweep broke off."""
    for words, cause in failed:
        console.print(f"Failed: {cause}\n  python train.py {' '.join(words)}", soft_wrap=True, markup=False)
    if failed:
        console.print(f"{len(failed)} of {len(follower.jobs)} runs failed; the same command tries them again ({log}).")
    elif status:
        last = "\n".join(log.read_text().splitlines()[-10:])
        console.print(
            f"The sweep broke off (status {status}); the same command goes on. {log} ends with\n{last}", markup=False
        )
