"""One training run as a Slurm job: its command and its requeueing. Importing this module does not import torch."""

import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subquad.training import distributed
from subquad.utils.errors import UserError


class SlurmJob:
    """A command line, run in the job's own process. submitit calls it, and `checkpoint` when the job is preempted.

    Shortly before a job's time limit, or when another job preempts it, Slurm sends it SIGUSR2 (submitit's choice,
    because NCCL uses SIGUSR1). submitit then requeues the job and ends this process. Lightning's own requeueing is
    switched off in `build_trainer`. The run resumes from its last complete epoch, so that it gives the numbers of an
    uninterrupted run.

    Args:
        argv: a program and its arguments.
        run: the folder of the run.
        seconds: time limit of a job.
    """

    def __init__(self, argv: Sequence[str], run: Path, seconds: float) -> None:
        self.argv, self.run, self.seconds = list(argv), run, seconds
        self.started = 0.0

    def __call__(self) -> None:
        self.started = time.time()
        os.register_at_fork(after_in_child=_ignore_signals)
        if distributed.rank():  # must not exit, because the first process may wait for it; ends with the job
            signal.signal(signal.SIGUSR2, distributed.mark_preempted)
        sys.argv = self.argv
        sys.path.insert(0, str(Path(self.argv[0]).parent))
        runpy.run_path(self.argv[0], run_name="__main__")

    def checkpoint(self) -> Any:
        """Returns the job that submitit queues in place of this one: the same command.

        Raises UserError if no epoch has ended within this job, because the next job would make no progress either.
        """
        from submitit.helpers import DelayedSubmission

        last = self.run / "checkpoints" / "last.ckpt"
        progressed = last.exists() and last.stat().st_mtime >= self.started
        if not progressed and time.time() - self.started > self.seconds / 2:
            raise UserError(
                f"No epoch ended within the {self.seconds / 60:g} minutes of a job, so the next job would start from "
                "the same checkpoint; raise hydra.launcher.timeout_min."
            )
        distributed.mark_preempted()
        return DelayedSubmission(SlurmJob(self.argv, self.run, self.seconds))


def _ignore_signals() -> None:
    """Ignores Slurm's signals in data workers: Slurm signals all processes of a job, and only one may requeue it."""
    for name in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
