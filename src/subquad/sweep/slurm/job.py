"""One training run as a job of Slurm: what the job executes, and how it gives its place back. Light: no torch."""

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
    """A command line, run in the job's own process; submitit calls it, and `checkpoint` when the job must go.

    `argv`: a program and its words; `run`: the folder of the run; `seconds`: how long a job may run.

    Seconds before the end of its time, or when another job takes its place, Slurm sends the job SIGUSR2 (submitit's
    choice: NCCL uses SIGUSR1). submitit then queues the same job again and ends this process. Nothing else does:
    Lightning's own is switched off in `made_trainer`. The run goes on from the end of its last whole epoch, so that its
    numbers are those of a run that was left alone.
    """

    def __init__(self, argv: Sequence[str], run: Path, seconds: float) -> None:
        self.argv, self.run, self.seconds = list(argv), run, seconds
        self.started = 0.0

    def __call__(self) -> None:
        self.started = time.time()
        os.register_at_fork(after_in_child=_leave_signals_to_the_parent)
        if distributed.rank():  # goes on, as the first process may wait for it; it ends with the job
            signal.signal(signal.SIGUSR2, distributed.mark_preempted)
        sys.argv = self.argv
        sys.path.insert(0, str(Path(self.argv[0]).parent))
        runpy.run_path(self.argv[0], run_name="__main__")

    def checkpoint(self) -> Any:
        """What submitit queues in place of this job: the same again.

        Raises UserError where a whole job was too short for an epoch: the next one would get no further.
        """
        from submitit.helpers import DelayedSubmission

        last = self.run / "checkpoints" / "last.ckpt"
        got_further = last.exists() and last.stat().st_mtime >= self.started
        if not got_further and time.time() - self.started > self.seconds / 2:
            raise UserError(
                f"No epoch ended within the {self.seconds / 60:g} minutes of a job, so that another one would start "
                "from the same place; raise hydra.launcher.timeout_min."
            )
        distributed.mark_preempted()
        return DelayedSubmission(SlurmJob(self.argv, self.run, self.seconds))


def _leave_signals_to_the_parent() -> None:
    """Slurm signals all processes of a job; a worker that loads data must not queue the job a second time."""
    for name in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
