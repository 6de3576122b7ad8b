"""Finished runs by their overrides: records, weights and data, for figures and for measurements of trained models."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from subquad import records
from subquad.config.compose import compose_run, load_factory
from subquad.results.cells import Job, Runs
from subquad.training.evaluation import changed_data, fitting_weights
from subquad.utils.display import as_typed
from subquad.utils.log_filters import quieten

Words = Sequence[str]
"""Overrides of train.py that make a run what it is: [task=lra/listops, attention=dba]."""


class RunStore:
    """The runs behind figures. `words` are those that every run gets: scale=laptop, data=synthetic."""

    def __init__(self, words: Words = ()) -> None:
        self.runs = Runs(words)
        quieten()

    def job(self, words: Words, seed: int = 0) -> Job:
        """The run of these words."""
        return self.runs.job(words, seed)

    def attention(self, name: str, words: Words = ()) -> Any:
        """The factory of a choice of attention, or of a backbone with a mechanism of its own, named backbone=<name>."""
        return load_factory(name if "=" in name else f"attention={name}", words)

    def metrics(self, words: Words, seed: int = 0) -> Mapping[str, float] | None:
        """The metrics of a run's record."""
        record = records.read(self.job(words, seed).folder)
        return None if record is None else record.metrics

    def scores(self, words: Words, seed: int = 0) -> Mapping[str, float] | None:
        """Scores on a run's test split that need no model."""
        record = records.read(self.job(words, seed).folder)
        return None if record is None else record.baselines

    def history(self, words: Words, seed: int = 0) -> Mapping[int, Mapping[str, float]] | None:
        """What a finished run logged, by optimiser step."""
        job = self.job(words, seed)
        return records.read_history(job.folder / "metrics.csv") if job.finished else None

    def data(self, words: Words, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Any:
        """The data module of a run, with some of its settings changed."""
        data = instantiate(changed_data(self._settings(words, seed)["data"], changes or {}), _convert_="all")
        data.prepare_data()
        return data

    def network(
        self, words: Words, seed: int = 0, trained: bool = True, changes: Mapping[str, Any] | None = None
    ) -> nn.Module | None:
        """The network with the weights of the best checkpoint, or as it was made; None where the run has not ended.

        Raises UserError where the weights do not fit the run's data with some settings changed.
        """
        checkpoint = self.job(words, seed).folder / "checkpoints" / "best.ckpt"
        if trained and not (self.job(words, seed).finished and checkpoint.exists()):
            return None
        data = self.data(words, seed, changes)
        torch.manual_seed(seed)
        module = instantiate(self._settings(words, seed)["task"]["module"], _convert_="all")(spec=data.spec)
        if trained:
            with fitting_weights():
                module.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"])
        return cast(nn.Module, module.network.eval())

    def command(self, words: Words, seed: int = 0) -> str:
        """The command line that trains a run."""
        return " ".join([as_typed("python train.py"), *self.job(words, seed).words])

    def _settings(self, words: Words, seed: int) -> dict[str, Any]:
        settings = OmegaConf.to_container(compose_run(self.job(words, seed).words), resolve=True)
        return cast(dict[str, Any], settings)
