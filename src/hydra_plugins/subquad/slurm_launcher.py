"""A launcher that runs the jobs of a sweep on a Slurm cluster."""

import logging
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.errors import CompactHydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.subquad.job_list_sweeper import INTERRUPTED
from hydra_plugins.subquad.remote_launcher import RemoteLauncher

log = logging.getLogger(__name__)


class Slurm(RemoteLauncher):
    """Submits the runs that have not finished and are not queued, waits for them and reports their results.

    Settings: configs/hydra/launcher/slurm.yaml.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from subquad.sweep.slurm.queue import check_installed
        from subquad.utils.errors import UserError

        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        try:
            check_installed()
        except UserError as error:
            raise CompactHydraException(str(error)) from None

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from subquad.sweep.slurm.submit import Jobs, check_settings, size_of
        from subquad.utils.errors import UserError

        jobs: Any = None
        try:
            check_settings(self.settings)
            runs = [self.requested(overrides, size_of) for overrides in job_overrides]
            jobs = Jobs(runs, self.settings)
            jobs.submit()
            jobs.wait(self.settings["poll_seconds"])
        except UserError as error:
            raise CompactHydraException(str(error)) from None
        except KeyboardInterrupt:
            self._explain_interrupt(jobs)
            raise SystemExit(INTERRUPTED) from None
        self.show(runs, jobs.failed, jobs.tickets)
        return [self.outcome(o, run.run, jobs.failed) for o, run in zip(job_overrides, runs, strict=True)]

    def _explain_interrupt(self, jobs: Any) -> None:
        tickets, unsent = (jobs.tickets, jobs.unsent) if jobs else ({}, {})
        numbers = sorted({ticket.job.partition("_")[0] for ticket in tickets.values()})
        rest = f" submits {len(unsent)} more runs and" if unsent else ""
        log.warning(
            "Interrupted. The jobs stay in the queue, and the same command%s waits for them again; "
            "to cancel them: scancel %s",
            rest, " ".join(numbers),
        )  # fmt: skip
