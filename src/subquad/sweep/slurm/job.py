"""Training runs as one Slurm job: its command and its requeueing. Importing this module does not import torch."""

import getpass
import json
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subquad import records
from subquad.config import choices
from subquad.config.overrides import as_override
from subquad.sweep.requested import RequestedRun
from subquad.training import distributed
from subquad.utils.errors import UserError

_FOLDERS = ("SUBQUAD_DATA", "SUBQUAD_OUTPUTS", choices.OWN, "HF_HOME")
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "SUBQUAD_KERNEL_CACHE": "kernels"}


class SlurmJob:
    """Runs of a sweep. submitit calls the object in the job, and `checkpoint` when the job is preempted.

    A single run trains in the job's own process. Several are a sweep by the workers launcher, `at_once` of them at a
    time for each GPU, or in all without GPUs.

    Shortly before a job's time limit, or when another job preempts it, Slurm sends it SIGUSR2 (submitit's choice,
    because NCCL uses SIGUSR1). submitit then requeues the job and ends this process. Lightning's own requeueing is
    switched off in `build_trainer`. A run resumes from its last complete epoch, so that it gives the numbers of an
    uninterrupted run.

    Args:
        seconds: time limit of a job.
    """

    def __init__(self, runs: Sequence[RequestedRun], at_once: int, seconds: float) -> None:
        self.runs, self.at_once, self.seconds = tuple(runs), at_once, seconds
        self.submitted = time.time()
        self.folders = {name: os.environ[name] for name in _FOLDERS if name in os.environ}
        self.started = 0.0

    def __call__(self) -> None:
        self.started = time.time()
        os.register_at_fork(after_in_child=_ignore_signals)
        if distributed.rank():  # must not exit, because the first process may wait for it; ends with the job
            signal.signal(signal.SIGUSR2, distributed.mark_preempted)
        os.environ.update(self.folders)  # lost where the cluster does not hand on the environment (--export=NONE)
        _keep_caches_local()
        if cores := self.runs[0].size.cores:  # rounding depends on the threads, which must not vary with the company
            os.environ.setdefault("OMP_NUM_THREADS", str(cores))
        with tempfile.TemporaryDirectory() as folder:
            sys.argv = self.argv(Path(folder) / "jobs")
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")

    def argv(self, jobs: Path) -> list[str]:
        """The command line. That of several runs reads their overrides from the file `jobs`, which is written."""
        program, *shared = self.runs[0].command
        if len(self.runs) == 1:
            return [program, *shared, *self.runs[0].overrides]
        jobs.write_text("".join(json.dumps(run.overrides) + "\n" for run in self.runs), encoding="utf-8")
        several = ("hydra/sweeper=job_list", f"hydra.sweeper.jobs={as_override(jobs)}", f"sweep.workers={self.at_once}")
        return [program, "-m", *shared, *several]

    def checkpoint(self) -> Any:
        """Returns the job that submitit queues in place of this one: its runs that have neither finished nor failed.

        Raises UserError if no epoch has ended within this job, because the next job would make no progress either.
        """
        from submitit.helpers import DelayedSubmission

        if len(self.runs) > 1:  # their processes ignore the signals that end others; they resume from checkpoints
            for child in multiprocessing.active_children():
                child.kill()
        files = (records.LAST, records.RESULT, records.ERROR)
        written = (run.run / name for run in self.runs for name in files)
        progressed = any(path.exists() and path.stat().st_mtime >= self.started for path in written)
        if not progressed and time.time() - self.started > self.seconds / 2:
            raise UserError(
                f"No epoch ended within the {self.seconds / 60:g} minutes of a job, so the next job would start from "
                "the same checkpoint; raise hydra.launcher.timeout_min."
            )
        distributed.mark_preempted()
        rest = SlurmJob(self._unfinished() or self.runs, self.at_once, self.seconds)
        rest.submitted, rest.folders = self.submitted, self.folders
        return DelayedSubmission(rest)

    def _unfinished(self) -> list[RequestedRun]:
        return [run for run in self.runs if not run.complete and records.read_error(run.run, self.submitted) is None]


def _keep_caches_local() -> None:
    """Puts the caches of compilers on this machine's own disk, unless the user has set them.

    In the home folder, many jobs at once would compile into one network file system. The folder is this user's alone,
    since what lies in it is run.
    """
    local = Path(tempfile.gettempdir()) / f"subquad-{getpass.getuser()}"
    local.mkdir(mode=0o700, exist_ok=True)
    if local.lstat().st_uid != os.getuid():
        local = Path(tempfile.mkdtemp(prefix=f"{local.name}-"))
    for name, folder in _CACHES.items():
        os.environ.setdefault(name, str(local / folder))


def _ignore_signals() -> None:
    """Ignores Slurm's signals in child processes: Slurm signals all processes of a job, and only one may requeue it."""
    for name in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
