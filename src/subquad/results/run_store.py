"""Finished runs by their overrides: records, weights and data, for figures and for measurements of trained models."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from subquad import records
from subquad.config.compose import compose_run, load_factory
from subquad.results.cells import RunIndex, RunSpec
from subquad.training.evaluation import changed_data, fitting_weights
from subquad.training.resume import check_data, read_best
from subquad.utils.display import command_line
from subquad.utils.log_filters import quieten

Overrides = Sequence[str]
"""Overrides of train.py that make a run what it is: [task=lra/listops, attention=dba]."""


class RunStore:
    """The runs behind figures. `overrides` go to every run: scale=laptop, data=synthetic."""

    def __init__(self, overrides: Overrides = ()) -> None:
        self.runs = RunIndex(overrides)
        quieten()

    def spec(self, overrides: Overrides, seed: int = 0) -> RunSpec:
        """The run of these overrides."""
        return self.runs.spec(overrides, seed)

    def attention(self, name: str, overrides: Overrides = ()) -> Any:
        """The factory of a choice of attention, or of a backbone with a mechanism of its own, named backbone=<name>."""
        return load_factory(name if "=" in name else f"attention={name}", overrides)

    def metrics(self, overrides: Overrides, seed: int = 0) -> Mapping[str, float] | None:
        """The metrics of a run's record."""
        record = records.read(self.spec(overrides, seed).folder)
        return None if record is None else record.metrics

    def scores(self, overrides: Overrides, seed: int = 0) -> Mapping[str, float] | None:
        """Baseline scores on a run's test split."""
        record = records.read(self.spec(overrides, seed).folder)
        return None if record is None else record.baselines

    def history(self, overrides: Overrides, seed: int = 0) -> Mapping[int, Mapping[str, float]] | None:
        """The logged values of a finished run, by optimiser step."""
        folder = self.spec(overrides, seed).folder
        record = records.read(folder)
        return None if record is None else records.read_curve(folder, record)

    def data(self, overrides: Overrides, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Any:
        """The data module of a run, with some of its settings changed."""
        data = instantiate(changed_data(self._settings(overrides, seed)["data"], changes or {}), _convert_="all")
        data.prepare_data()
        return data

    def network(
        self, overrides: Overrides, seed: int = 0, trained: bool = True, changes: Mapping[str, Any] | None = None
    ) -> nn.Module | None:
        """The network with the weights of the best checkpoint, or untrained; None if the run has not finished.

        Raises UserError if the weights do not fit the run's data with some settings changed.
        """
        folder = self.spec(overrides, seed).folder
        record = records.read(folder)
        if trained and (record is None or not (folder / records.BEST).exists()):
            return None
        data = self.data(overrides, seed, changes)
        torch.manual_seed(seed)
        module = instantiate(self._settings(overrides, seed)["task"]["module"], _convert_="all")(spec=data.spec)
        if trained:
            assert record is not None
            check_data(data, record.data_fingerprint, folder)
            with fitting_weights():
                module.load_state_dict(read_best(folder, record)["state_dict"])
        return cast(nn.Module, module.network.eval())

    def command(self, overrides: Overrides, seed: int = 0) -> str:
        """The command line that trains a run."""
        return command_line("python train.py", self.spec(overrides, seed).overrides)

    def _settings(self, overrides: Overrides, seed: int) -> dict[str, Any]:
        settings = OmegaConf.to_container(compose_run(self.spec(overrides, seed).overrides), resolve=True)
        return cast(dict[str, Any], settings)
