"""What Slurm says of jobs: which are still to come or running, and the run that each of them trains."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from subquad import records
from subquad.utils.errors import UserError

PROGRAMS = ("sbatch", "srun", "squeue", "scontrol")
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
_ENDING = "COMPLETING"
_TICKET = "slurm.json"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The job that trains a run: its name in the queue, such as 17_3, the file with what it said, and since when."""

    job: str
    log: str
    submitted: float

    def keep(self, run: Path) -> None:
        """Writes it into the folder of the run, for the next command that wants the same run."""
        records.write_json(run / _TICKET, asdict(self))

    @property
    def last_words(self) -> str:
        """The end of the log; empty where there is none."""
        try:
            return Path(self.log).read_text(errors="replace")[-4000:].strip()
        except OSError:
            return ""


def ticket(run: Path) -> Ticket | None:
    """The last job that was submitted for a run."""
    try:
        return Ticket(**json.loads((run / _TICKET).read_text()))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Queue:
    """The user's jobs: `states` maps those that Slurm still knows to words such as PENDING."""

    states: dict[str, str]

    def has(self, job: str) -> bool:
        """Whether a job waits or runs."""
        return job in self.states and self.states[job] not in (*_ENDED, _ENDING)

    def ends(self, job: str) -> bool:
        """Whether a job neither waits nor runs, but may yet be queued again: its processes are being ended."""
        return self.states.get(job) == _ENDING

    def runs(self, job: str) -> bool:
        """Whether a job is running."""
        return self.states.get(job) in ("RUNNING", "CONFIGURING")


def queue() -> Queue:
    """What squeue says now, also of jobs that ended minutes ago. Raises UserError where it gives no answer.

    Not sacct: many clusters keep no accounts.
    """
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"squeue gives no answer ({_first(done.stderr)}); ask again when `squeue` works in this shell.")
    return Queue(dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line))


def check_installed() -> None:
    """Raises UserError where this machine has no submitit or no Slurm."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UserError("hydra/launcher=slurm needs submitit; pip install subquad[slurm]") from None
    if lacking := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise UserError(
            f"hydra/launcher=slurm finds no {lacking[0]} here; start it where Slurm's commands work (a login node), or "
            "leave it out to train on this machine."
        )


def has_gpus(partition: str | None) -> bool:
    """Whether any node of a partition, or of the cluster, has GPUs that Slurm gives out."""
    command = ["sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else [])]
    return "gpu" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def why(run: Path, job: Ticket, state: str | None) -> str:
    """Why a job did not do its work: the error of the run, or what Slurm says; the run keeps it either way."""
    message = records.read_error(run, job.submitted)
    if message is None:
        ended = f"ended as {state}" if state in _ENDED else "is gone"
        left = "did not evaluate the run" if records.complete(run) else "left no record"
        message = f"Slurm's job {job.job} {ended} and {left}; its log is {job.log}"
        records.write_error(message, job.last_words, run)
    return message


def _first(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no reason given")
