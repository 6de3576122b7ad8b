"""A launcher that runs the jobs of a sweep on a Slurm cluster."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)

_SWEEP_SETTINGS = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper", "hydra.sweep", "hydra.mode")


class Slurm(Launcher):
    """Submits the runs that have not finished and are not queued, waits for them and reports their results.

    A job is the command line of one run: `python train.py <overrides>`. Settings: configs/hydra/launcher/slurm.yaml.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from subquad.sweep.slurm.queue import check_installed
        from subquad.utils.errors import UserError

        self.loader, self.config = hydra_context.config_loader, config
        try:
            check_installed()
        except UserError as error:
            raise CompactHydraException(str(error)) from None

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from subquad import records
        from subquad.sweep.outcome import show_outcome
        from subquad.sweep.slurm.submit import Jobs
        from subquad.training import summary
        from subquad.utils.errors import UserError

        settings = {
            name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for name, value in self.settings.items()
        }
        jobs: Any = None
        try:
            runs = [self._requested(overrides, settings) for overrides in job_overrides]
            jobs = Jobs(runs, settings)
            jobs.submit()
            jobs.wait(settings["poll_seconds"])
        except UserError as error:
            raise CompactHydraException(str(error)) from None
        except KeyboardInterrupt:
            self._explain_interrupt(jobs)
            raise SystemExit(130) from None
        for run in dict.fromkeys(request.run for request in runs if request.run not in jobs.failed):
            record = records.read(run)
            assert record is not None
            summary.show(record, run, "" if run in jobs.tickets else " (finished before, not trained again)")
        show_outcome(self.config, (request.run for request in runs))
        return [self._outcome(list(o), run.run, jobs.failed) for o, run in zip(job_overrides, runs, strict=True)]

    def _explain_interrupt(self, jobs: Any) -> None:
        tickets, unsent = (jobs.tickets, jobs.unsent) if jobs else ({}, {})
        numbers = sorted({ticket.job.partition("_")[0] for ticket in tickets.values()})
        rest = f" submits {len(unsent)} more runs and" if unsent else ""
        log.warning(
            "Interrupted. The jobs stay in the queue, and the same command%s waits for them again; "
            "to cancel them: scancel %s",
            rest, " ".join(numbers),
        )  # fmt: skip

    def _requested(self, overrides: Sequence[str], settings: Mapping[str, Any]) -> Any:
        from subquad.sweep.slurm.job import RequestedRun
        from subquad.sweep.slurm.submit import size_of
        from subquad.training.distributed import flags

        config = self.loader.load_sweep_config(self.config, list(overrides))
        HydraConfig.instance().set_config(config)
        given = self.config.hydra.overrides.hydra
        hydra = [setting for setting in given if not setting.lstrip("+~").startswith(_SWEEP_SETTINGS)]
        evaluations: Any = OmegaConf.to_container(config.evaluate, resolve=True)
        return RequestedRun(
            Path(config.paths.run), (str(Path(sys.argv[0]).absolute()), *flags(), *hydra),
            tuple(filter_overrides(overrides)), size_of(config, settings), tuple(evaluations),
        )  # fmt: skip

    def _outcome(self, overrides: list[str], run: Path, reasons: Mapping[Path, str]) -> JobReturn:
        from subquad import records

        outcome = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
        if run in reasons:
            outcome.status = JobStatus.FAILED
            outcome.return_value = CompactHydraException(f"{reasons[run]} (details in {run / records.ERROR})")
        elif (record := records.read(run)) is not None:
            outcome.return_value = record.metrics[record.config["task"]["monitor"]]
        return outcome
