"""Stops a trial of a search that validates worse than earlier ones."""

import json
import os
from functools import cached_property
from typing import Any

import pytorch_lightning as pl
from hydra.utils import instantiate

from subquad.training.distributed import rank
from subquad.utils.errors import UserError

TRIAL = "SUBQUAD_TRIAL"
"""The environment variable with which a search tells a run its trial: arguments of `Prune`, as JSON."""
PRUNED = "pruned"
"""Attribute of a trial: the optimiser step at which it was stopped."""


def storage_of(place: str) -> Any:
    """Optuna's storage at the address of a database, or in a file."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return place if "://" in place else JournalStorage(JournalFileBackend(place))


def of_search(monitor: str) -> list["Prune"]:
    """The callback of a run that is the trial of a search; none for others."""
    given = os.environ.get(TRIAL)
    return [Prune(**json.loads(given), monitor=monitor)] if given else []


class Prune(pl.Callback):
    """Reports each validation to the study of `hydra/sweeper=optuna`, whose pruner may end the run.

    Args:
        storage: the file or the address of the study.
        study: its name.
        trial: the number of this run's trial.
        pruner: the settings of the pruner.
        monitor: the validation metric.
    """

    def __init__(self, storage: str, study: str, trial: int, pruner: dict[str, Any], monitor: str) -> None:
        self.storage, self.study, self.trial, self.pruner, self.monitor = storage, study, trial, pruner, monitor

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Raises UserError where the pruner ends the trial. One process of several decides for all."""
        stops = False
        if not trainer.sanity_checking and not rank():
            stops = self._stops(float(trainer.callback_metrics[self.monitor]), trainer.global_step)
        if trainer.strategy.reduce_boolean_decision(stops, all=False):
            raise UserError(
                f"Stopped early at step {trainer.global_step}: {self.monitor} is worse than in earlier trials; the "
                "same run without hydra/sweeper=optuna continues."
            )

    def _stops(self, value: float, step: int) -> bool:
        self._trial.report(value, step)
        if not self._trial.should_prune():
            return False
        self._trial.set_user_attr(PRUNED, step)
        return True

    @cached_property
    def _trial(self) -> Any:
        """The trial in its study, which reads what other trials have reported since."""
        import optuna

        study = optuna.load_study(
            study_name=self.study, storage=storage_of(self.storage), pruner=instantiate(self.pruner)
        )
        return optuna.Trial(study, study.trials[self.trial]._trial_id)
