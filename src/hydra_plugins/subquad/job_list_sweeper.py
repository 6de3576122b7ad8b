"""A sweeper for an arbitrary list of jobs; Hydra's basic sweeper only takes products of choices."""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from subquad.utils.errors import first_line

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit status of an interrupted run."""


class JobList(Sweeper):
    """Launches the jobs of a file with the chosen launcher.

    The file has one JSON list of overrides a line. Jobs after an empty line start when all jobs before it have ended.
    If a job fails, the others still run; the sweep fails after the last one and writes `<jobs>.failed`, one JSON list
    of the overrides and the cause of each failure a line. An interrupted run ends the sweep at once.

    Args:
        jobs: path of the file.
        leader: id of the parent process that waits for this sweep; the sweep is interrupted when that process ends.
    """

    def __init__(self, jobs: str, leader: int | None = None) -> None:
        self.jobs = Path(jobs)
        self.leader = leader
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        blocks = [block.splitlines() for block in self.jobs.read_text(encoding="utf-8").split("\n\n")]
        stages = [[json.loads(line) for line in block if line] for block in blocks if any(block)]
        results: list[JobReturn] = []
        assert self.launcher is not None
        if self.leader is not None:
            threading.Thread(target=_interrupt_after, args=(self.leader,), daemon=True).start()
        try:
            for stage in stages:
                results += launch(self.launcher, [[*arguments, *overrides] for overrides in stage], len(results))
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        ended = zip((overrides for stage in stages for overrides in stage), results, strict=True)
        failed = [
            (overrides, first_line(result._return_value))
            for overrides, result in ended
            if result.status != JobStatus.COMPLETED
        ]
        for overrides, cause in failed:
            log.error("Failed: %s\n  %s", " ".join(overrides), cause)
        if failed:
            self.jobs.with_name(f"{self.jobs.name}.failed").write_text(
                "".join(json.dumps(f) + "\n" for f in failed), encoding="utf-8"
            )
            raise SystemExit(f"{len(failed)} of {len(results)} jobs failed; the same command tries them again.")
        return results


def launch(launcher: Launcher, jobs: Sequence[Sequence[str]], first_index: int) -> Sequence[JobReturn]:
    """Runs jobs with any launcher; a job that fails ends no other."""
    # Compared by name because Hydra reloads the modules of its plugins when it scans them, which changes classes.
    if any(kind.__name__ == "BasicLauncher" for kind in type(launcher).__mro__):
        return [run_here(launcher, overrides, index) for index, overrides in enumerate(jobs, first_index)]
    return launcher.launch(jobs, initial_job_idx=first_index)


def settings_of(overrides: Sequence[str]) -> list[str]:
    """The overrides of a job that are settings of its run, without those of Hydra."""
    return [override for override in filter_overrides(list(overrides)) if not override.startswith("+hydra.")]


def run_here(launcher: Launcher, overrides: Sequence[str], index: int) -> JobReturn:
    """Runs one job in this process. An error becomes a failed result; only an interrupt is raised."""
    try:
        [result] = launcher.launch([overrides], initial_job_idx=index)
    except (SystemExit, HydraException, OmegaConfBaseException) as error:
        if isinstance(error, SystemExit) and error.code == INTERRUPTED:
            raise
        result = JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=error)
    return result


def _interrupt_after(leader: int) -> None:
    """Interrupts this process when `leader` is no longer its parent; a killed leader cannot do so itself."""
    while os.getppid() == leader:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
