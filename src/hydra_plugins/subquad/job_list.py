"""A sweep over any list of jobs, where Hydra's own sweeper knows products of choices only."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

log = logging.getLogger(__name__)


class JobList(Sweeper):
    """Gives the chosen launcher the jobs of a file, one JSON list of overrides a line.

    A failed job does not keep the others from running; the sweep fails after the last one.
    """

    def __init__(self, jobs: str) -> None:
        self.jobs = jobs
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        assert self.launcher is not None
        lines = Path(self.jobs).read_text().splitlines()
        batch = [[*arguments, *json.loads(line)] for line in lines]
        results: Sequence[JobReturn] = self.launcher.launch(batch, initial_job_idx=0)
        failed = [r for r in results if r.status != JobStatus.COMPLETED]
        for result in failed:
            log.error("Failed: %s\n  %s", " ".join(result.overrides or []), result._return_value)
        if failed:
            raise SystemExit(f"{len(failed)} of {len(batch)} jobs failed; the same command tries them again.")
        return results
