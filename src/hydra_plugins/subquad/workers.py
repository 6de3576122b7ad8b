"""The runs of a sweep side by side on this machine."""

import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.errors import CompactHydraException, HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins.subquad.job_list import INTERRUPTED, alone

log = logging.getLogger(__name__)


class Workers(Launcher):
    """Trains each run in a process of its own, `sweep.workers` of them at a time.

    The processes are forked when all is imported, so that none of them pays for that again; what ends one of them (a
    crash, no memory) is a failure of its run alone. Where processes cannot be forked safely, which is everywhere but on
    Linux, runs train one after another in this process.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config
        self.basic = BasicLauncher()
        self.basic.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        if sys.platform != "linux":
            return [alone(self.basic, words, initial_job_idx + place) for place, words in enumerate(job_overrides)]
        from subquad.sweep import workers
        from subquad.utils.errors import UserError

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        first = next(filter(None, map(self._composed_or_none, job_overrides)), self.config)
        jobs = dict(enumerate(job_overrides, start=initial_job_idx))
        results: dict[int, JobReturn] = {}

        def begun(number: int) -> None:
            log.info(f"\t#{number} : {' '.join(filter_overrides(jobs[number]))}")

        def ended(number: int, result: JobReturn | None, cause: str | None) -> None:
            results[number] = result or _failed(jobs[number], CompactHydraException(cause))
            if results[number].status != JobStatus.COMPLETED:
                log.error(f"#{number} failed: {results[number]._return_value}")

        tasks = {number: partial(self._run, words, number) for number, words in jobs.items()}
        with workers.interruptible():
            try:
                plan = workers.workers_for(first.sweep.workers, first.trainer, len(jobs))
            except UserError as error:
                raise CompactHydraException(str(error)) from None
            runs, threads = (f"{n} {word}{'s' * (n > 1)}" for n, word in ((len(jobs), "run"), (plan.threads, "thread")))
            log.info(f"{runs}, {plan.count} at a time, {threads} each")
            workers.import_for(OmegaConf.to_container(first))
            workers.run_all(tasks, plan, begun, ended)
        failed = [f"#{number}" for number in jobs if results[number].status != JobStatus.COMPLETED]
        if len(failed) > 1:  # Hydra tells of the first
            log.error(f"{len(failed)} of {runs} failed ({', '.join(failed)}); the same command tries them again.")
        return [results[number] for number in jobs]

    def _composed(self, words: Sequence[str]) -> DictConfig:
        return self.context.config_loader.load_sweep_config(self.config, list(words))

    def _composed_or_none(self, words: Sequence[str]) -> DictConfig | None:
        """None where a job cannot be composed, which its own process says."""
        try:
            return self._composed(words)
        except (SystemExit, HydraException, OmegaConfBaseException):
            return None

    def _run(self, words: Sequence[str], number: int, tell: Callable[[Path], None]) -> JobReturn:
        """One job, in the process forked for it. What fails is told by one sentence; other processes see no more."""
        try:
            config = self._composed(words)
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            HydraConfig.instance().set_config(config)
            tell(Path(config.paths.run))
            result = run_job(
                hydra_context=self.context, task_function=self.task, config=config, job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )  # fmt: skip
        except (SystemExit, HydraException, OmegaConfBaseException) as error:
            if isinstance(error, SystemExit) and error.code == INTERRUPTED:
                raise
            result = _failed(words, error)
        if result.status != JobStatus.COMPLETED:
            cause: Any = result._return_value
            if not isinstance(cause, HydraException | SystemExit | OmegaConfBaseException):
                traceback.print_exception(cause)
            result = _failed(words, CompactHydraException(str(cause) or type(cause).__name__))
        return result


def _failed(words: Sequence[str], error: BaseException) -> JobReturn:
    return JobReturn(overrides=list(words), status=JobStatus.FAILED, _return_value=error)
