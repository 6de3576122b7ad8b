"""States of Slurm jobs, and the job of each run."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from subquad import records
from subquad.utils.errors import UserError, explain
from subquad.utils.killed import ESTIMATE, why_killed

PROGRAMS = ("sbatch", "srun", "squeue", "scontrol")
_END_STATES = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
_ENDING = "COMPLETING"
_PASSING = {"None", "Resources", "Priority", "JobArrayTaskLimit", "BeginTime"}  # why jobs wait that need no attention
_TICKET = "slurm.json"
_FULL = re.compile(  # what sbatch says where the same jobs may be taken later, or fewer of them now
    "limit|policy|temporarily|array specification|connect|connection|timed out|not responding|try again",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Ticket:
    """The job of a run: its id in the queue (such as 17_3), its log file, and the time of its submission."""

    job: str
    log: str
    submitted: float

    def keep(self, run: Path) -> None:
        """Writes the ticket into the folder of the run, for later commands that request the same run."""
        records.write_json(run / _TICKET, asdict(self))

    @property
    def log_tail(self) -> str:
        """The end of the log; empty if there is no log."""
        try:
            return Path(self.log).read_text(encoding="utf-8", errors="replace")[-4000:].strip()
        except OSError:
            return ""


def ticket(run: Path) -> Ticket | None:
    """The last job that was submitted for a run; None if there is none."""
    try:
        return Ticket(**json.loads((run / _TICKET).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Queue:
    """The user's jobs: ids of jobs that Slurm still lists with states such as PENDING, and reasons why jobs wait."""

    states: dict[str, str]
    reasons: dict[str, str] = field(default_factory=dict)

    def has(self, job: str) -> bool:
        """Whether a job is queued or running."""
        return job in self.states and self.states[job] not in (*_END_STATES, _ENDING)

    def ends(self, job: str) -> bool:
        """Whether the processes of a job are being ended; the job may be requeued afterwards."""
        return self.states.get(job) == _ENDING

    @property
    def size(self) -> int:
        """Number of jobs that are queued or running."""
        return sum(map(self.has, self.states))

    def runs(self, job: str) -> bool:
        """Whether a job is running."""
        return self.states.get(job) in ("RUNNING", "CONFIGURING")


def queue() -> Queue:
    """Reads the current states from squeue, which also lists jobs that ended minutes ago; raises UserError if it fails.

    sacct would need Slurm's accounting, which many clusters do not enable.
    """
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"squeue failed ({_first_line(done.stderr)}); try again when `squeue` works in this shell.")
    rows = [line.strip().split("|") for line in done.stdout.splitlines() if "|" in line]
    reasons = {job: why for job, state, *whys in rows for why in whys if state == "PENDING" and why not in _PASSING}
    return Queue({row[0]: row[1] for row in rows}, reasons)


def check_installed() -> None:
    """Raises UserError if this machine has no submitit or no Slurm."""
    try:
        import submitit  # noqa: F401
    except ModuleNotFoundError as error:
        raise explain(error) or error from None
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise UserError(
            f"hydra/launcher=slurm finds no {missing[0]} here; start it where Slurm's commands work (a login node), or "
            "leave it out to train on this machine."
        )


@cache
def has_gpus(partition: str | None) -> bool:
    """Whether any node of a partition (None: of the cluster) has GPUs that Slurm allocates."""
    command = ["sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else [])]
    return "gpu" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def largest_array() -> int:
    """The number of jobs that the cluster allows in an array (its MaxArraySize); 1 if it has no arrays."""
    command = ["scontrol", "show", "config"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    return max(1, int(found[1])) if found else 1001  # Slurm's default


def is_full(refusal: str) -> bool:
    """Whether sbatch refused jobs because of a limit on their number, or because the controller did not answer."""
    return "time limit is invalid" not in refusal.lower() and _FULL.search(refusal) is not None


def failure_reason(run: Path, job: Ticket, state: str | None) -> str:
    """Why a job failed: the error in the run's folder, else the job's state in Slurm, which is written there."""
    message = records.read_error(run, job.submitted)
    if message is None:
        ended = f"ended as {state}" if state in _END_STATES else "is gone"
        missing = "did not evaluate the run" if records.complete(run) else "left no record"
        message = f"Slurm's job {job.job} {ended} and {missing}; its log is {job.log}"
        if state == "OUT_OF_MEMORY" or (run / ESTIMATE).exists():
            message = f"{message}. It was killed, {why_killed(run)}."
        records.write_error(message, job.log_tail, run)
    return message


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no reason given")
