"""What launchers share whose runs train on other machines: the requested runs and their results."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.subquad.job_list_sweeper import settings_of

_SWEEP_SETTINGS = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper", "hydra.sweep", "hydra.mode")


class RemoteLauncher(Launcher):
    """Trains the runs of a sweep as command lines, `python train.py <overrides>`; `launch` remains to be written."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config
        self.settings = {
            name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for name, value in self.settings.items()
        }

    def requested(self, overrides: Sequence[str], size_of: Callable[[DictConfig, Mapping[str, Any]], Any]) -> Any:
        """A run as `subquad.sweep.requested.RequestedRun`, with the resources that `size_of` gives it."""
        from subquad.config.fingerprint import name_of
        from subquad.sweep.requested import RequestedRun
        from subquad.training.distributed import flags
        from subquad.utils.errors import UserError

        config = self.loader.load_sweep_config(self.config, list(overrides))
        HydraConfig.instance().set_config(config)
        if Path(config.paths.run).name != name_of(config):
            raise UserError(
                f"paths.run={config.paths.run} is one folder for all runs; leave it out, or set paths.outputs."
            )
        given = [*self.config.hydra.overrides.hydra, *(o for o in overrides if o.startswith("+hydra."))]
        hydra = [setting for setting in given if not setting.lstrip("+~").startswith(_SWEEP_SETTINGS)]
        evaluations: Any = OmegaConf.to_container(config.evaluate, resolve=True)
        return RequestedRun(
            Path(config.paths.run), (str(Path(sys.argv[0]).absolute()), *flags(), *hydra),
            tuple(settings_of(overrides)), size_of(config, self.settings), tuple(evaluations),
        )  # fmt: skip

    def show(self, runs: Iterable[Any], failed: Mapping[Path, str], trained: Iterable[Path]) -> None:
        """Shows the records of the runs that have not failed, and the table over seeds."""
        from subquad import records
        from subquad.sweep.outcome import show_outcome
        from subquad.training import summary

        folders, new = [run.run for run in runs], {*trained}
        for folder in dict.fromkeys(folder for folder in folders if folder not in failed):
            record = records.read(folder)
            assert record is not None
            summary.show(record, folder, "" if folder in new else " (finished before, not trained again)")
        show_outcome(self.config, folders)

    def outcome(self, overrides: Sequence[str], run: Path, reasons: Mapping[Path, str]) -> JobReturn:
        """What Hydra gets for a run. reasons: why runs failed, by their folder."""
        from subquad import records

        outcome = JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED)
        if run in reasons:
            outcome.status = JobStatus.FAILED
            outcome.return_value = CompactHydraException(f"{reasons[run]} (details in {run / records.ERROR})")
        elif (record := records.read(run)) is not None:
            outcome.return_value = record.metrics[record.config["task"]["monitor"]]
        return outcome
