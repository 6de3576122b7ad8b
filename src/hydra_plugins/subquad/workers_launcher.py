"""A launcher that trains the runs of a sweep in parallel on this machine."""

import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.errors import CompactHydraException, HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins.subquad.job_list_sweeper import INTERRUPTED, settings_of

log = logging.getLogger(__name__)


class Workers(Launcher):
    """Trains each run in a process of its own, `sweep.workers` of them at a time.

    The processes are forked after all imports, so that imports are paid for once. A crash or lack of memory ends only
    the run that causes it. On systems other than Linux, where forking is not safe, runs train one after another in this
    process.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from subquad.sweep.outcome import show_outcome

        results = self._launch(job_overrides, initial_job_idx)
        ended = (result.hydra_cfg for result in results if result.status == JobStatus.COMPLETED)
        show_outcome(self.config, (Path(hydra.hydra.runtime.output_dir) for hydra in ended if hydra is not None))
        return results

    def _launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from subquad.sweep.outcome import is_search
        from subquad.utils.display import counted

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        first = next(filter(None, map(self._composed_or_none, job_overrides)), self.config)
        jobs = dict(enumerate(job_overrides, start=initial_job_idx))
        results: dict[int, JobReturn] = {}

        def on_start(number: int) -> None:
            log.info(f"\t#{number} : {' '.join(settings_of(jobs[number]))}")

        def on_end(number: int, result: JobReturn | None, cause: str | None) -> None:
            results[number] = result or _failed(jobs[number], CompactHydraException(cause))
            if results[number].status != JobStatus.COMPLETED:
                log.error(f"#{number} ({' '.join(settings_of(jobs[number]))}) failed: {results[number]._return_value}")

        if sys.platform != "linux":
            for number, overrides in jobs.items():
                on_start(number)
                result = self._run(overrides, number, lambda _: None)
                configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)  # the run has set its own
                on_end(number, result, None)
        else:
            self._fork(first, {n: partial(self._run, overrides, n) for n, overrides in jobs.items()}, on_start, on_end)
        failed = [f"#{number}" for number in jobs if results[number].status != JobStatus.COMPLETED]
        if len(failed) > 1 and not is_search(self.config):  # Hydra only reports the first
            runs = counted(len(jobs), "run")
            log.error(f"{len(failed)} of {runs} failed ({', '.join(failed)}); the same command tries them again.")
        return [results[number] for number in jobs]

    def _fork(self, first: DictConfig, tasks: Mapping[int, Any], on_start: Any, on_end: Any) -> None:
        """Runs the tasks in processes of their own, as many at a time as the configuration of the first says."""
        from subquad.sweep import workers
        from subquad.utils.display import counted
        from subquad.utils.errors import UserError

        with workers.interruptible():
            try:
                plan = workers.workers_for(first.sweep.workers, first.trainer, len(tasks))
            except UserError as error:
                raise CompactHydraException(str(error)) from None
            runs, threads = counted(len(tasks), "run"), counted(plan.threads, "thread")
            log.info(f"{runs}, {plan.count} at a time, {threads} each")
            workers.import_for(OmegaConf.to_container(first))
            workers.run_all(tasks, plan, on_start, on_end)

    def _composed(self, overrides: Sequence[str]) -> DictConfig:
        return self.context.config_loader.load_sweep_config(self.config, list(overrides))

    def _composed_or_none(self, overrides: Sequence[str]) -> DictConfig | None:
        """The configuration of a job, or None if it cannot be composed; the process of the job reports the error."""
        try:
            return self._composed(overrides)
        except (SystemExit, HydraException, OmegaConfBaseException):
            return None

    def _run(self, overrides: Sequence[str], number: int, send_folder: Callable[[Path], None]) -> JobReturn:
        """Runs one job in the process forked for it. An error is reduced to one sentence that can be pickled."""
        try:
            config = self._composed(overrides)
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            HydraConfig.instance().set_config(config)
            send_folder(Path(config.paths.run))
            result = run_job(
                hydra_context=self.context, task_function=self.task, config=config, job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )  # fmt: skip
        except (SystemExit, HydraException, OmegaConfBaseException) as error:
            if isinstance(error, SystemExit) and error.code == INTERRUPTED:
                raise
            result = _failed(overrides, error)
        if result.status != JobStatus.COMPLETED:
            cause: Any = result._return_value
            if not isinstance(cause, HydraException | SystemExit | OmegaConfBaseException):
                traceback.print_exception(cause)
            result = _failed(overrides, CompactHydraException(str(cause) or type(cause).__name__))
        return result


def _failed(overrides: Sequence[str], error: BaseException) -> JobReturn:
    return JobReturn(overrides=list(overrides), status=JobStatus.FAILED, _return_value=error)
