"""A sweeper that searches settings with Optuna; it takes the words of Hydra's plugin for older versions of Optuna."""

from collections.abc import Mapping
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.subquad.job_list_sweeper import INTERRUPTED, launch


class OptunaSweeper(Sweeper):
    """Searches the settings that the command line gives as `interval(...)`, `range(...)`, `choice(...)` or a list.

    Trials run `n_jobs` at a time through the chosen launcher, which finds runs that have finished before. The study is
    a file, so the same command goes on after an interruption, until `n_trials` have ended; trials that were running are
    tried again. A trial that fails ends no other. See configs/hydra/sweeper/optuna.yaml for the arguments.
    """

    def __init__(
        self, n_trials: int, n_jobs: int | None, params: Mapping[str, str], study_name: str | None,
        storage: str | None, sampler: Any, pruner: Any,
    ) -> None:  # fmt: skip
        self.n_trials, self.n_jobs, self.params = n_trials, n_jobs, params
        self.study_name, self.storage, self.sampler, self.pruner = study_name, storage, sampler, pruner
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from subquad.report.html.study_page import write_study_page
        from subquad.sweep import study
        from subquad.utils.errors import UserError

        assert self.launcher is not None
        assert self.config is not None
        try:
            study.check_counts(self.n_trials, self.n_jobs)
            fixed, space = study.split(arguments, self.params)
            first = self.context.config_loader.load_sweep_config(self.config, [*fixed, *study.example(space)])
            at_once = self.n_jobs or _at_once(first, self.n_trials)
            with study.opened(
                first, fixed, space, self.study_name, self.storage, self.sampler, self.pruner, write_study_page
            ) as search:
                while (left := self.n_trials - search.ended) > 0:
                    jobs = search.ask(min(at_once, left))
                    results = launch(self.launcher, jobs, search.asked - len(jobs))
                    search.tell([_value(result) for result in results])
                return search.show()
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except UserError as error:
            raise CompactHydraException(str(error)) from None


def _value(result: JobReturn) -> float | str:
    """What a run returned, or the cause of its failure."""
    return float(result._return_value) if result.status == JobStatus.COMPLETED else str(result._return_value)


def _at_once(config: DictConfig, trials: int) -> int:
    if not str(config.hydra.launcher._target_).endswith(".Workers"):
        return 4
    from subquad.sweep.workers import workers_for

    return workers_for(config.sweep.workers, config.trainer, trials).count
