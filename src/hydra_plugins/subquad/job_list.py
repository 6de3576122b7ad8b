"""A sweep over any list of jobs, where Hydra's own sweeper knows products of choices only."""

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
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit status of a run that was stopped from outside."""


class JobList(Sweeper):
    """Gives the chosen launcher the jobs of a file, one JSON list of overrides a line.

    Jobs after an empty line start when all before it have ended. A failed job does not keep the others from running:
    the sweep fails after the last one, and writes the words and the cause of each failure to the file `<jobs>.failed`,
    one JSON list a line. What is stopped from outside ends the sweep at once, and so does the end of the process
    `leader`, the program that started this one and waits for it: nobody would know of the runs any more.
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
        blocks = [block.splitlines() for block in self.jobs.read_text().split("\n\n")]
        waves = [[json.loads(line) for line in block if line] for block in blocks if any(block)]
        results: list[JobReturn] = []
        if self.leader is not None:
            threading.Thread(target=_end_with, args=(self.leader,), daemon=True).start()
        try:
            for wave in waves:
                results += self._launched([[*arguments, *words] for words in wave], len(results))
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        ended = zip((words for wave in waves for words in wave), results, strict=True)
        failed = [(words, _cause(result)) for words, result in ended if result.status != JobStatus.COMPLETED]
        for words, cause in failed:
            log.error("Failed: %s\n  %s", " ".join(words), cause)
        if failed:
            self.jobs.with_name(f"{self.jobs.name}.failed").write_text("".join(json.dumps(f) + "\n" for f in failed))
            raise SystemExit(f"{len(failed)} of {len(results)} jobs failed; the same command tries them again.")
        return results

    def _launched(self, wave: Sequence[Sequence[str]], number: int) -> Sequence[JobReturn]:
        assert self.launcher is not None
        # By name: Hydra loads the modules of its plugins again when it looks for them, and their classes differ then.
        if any(kind.__name__ == "BasicLauncher" for kind in type(self.launcher).__mro__):
            return [alone(self.launcher, words, number + place) for place, words in enumerate(wave)]
        return self.launcher.launch(wave, initial_job_idx=number)


def alone(launcher: Launcher, words: Sequence[str], number: int) -> JobReturn:
    """One job in this process, which nothing but an interrupt of it ends."""
    try:
        [result] = launcher.launch([words], initial_job_idx=number)
    except (SystemExit, HydraException, OmegaConfBaseException) as error:
        if isinstance(error, SystemExit) and error.code == INTERRUPTED:
            raise
        result = JobReturn(overrides=words, status=JobStatus.FAILED, _return_value=error)
    return result


def _end_with(leader: int) -> None:
    """Interrupts this process when its parent is no longer `leader`, which a killed one cannot do itself."""
    while os.getppid() == leader:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


def _cause(result: JobReturn) -> str:
    """The first line of what a job failed with; the name of an error that says nothing."""
    said = next(iter(str(result._return_value).splitlines()), "")
    return said or type(result._return_value).__name__
