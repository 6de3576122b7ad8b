"""Evaluation of the best checkpoint of a finished run, and its predictions."""

import inspect
import logging
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pytorch_lightning as pl
import torch
from filelock import FileLock
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.accelerators import CUDAAccelerator
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import Tensor, nn

from subquad import records
from subquad.config.settings import check_settings, without_weights
from subquad.data.batches import EvalBatches
from subquad.data.split_data import SplitData
from subquad.measure import machine
from subquad.specs import Batch
from subquad.tasks.supervised import Supervised
from subquad.training.bundle import is_bundle, load_predictor
from subquad.training.lightning_data import TrainedOn
from subquad.training.memory_plan import limit_evaluation
from subquad.training.resume import check_data, data_settings, read_best
from subquad.training.runtime import Runtime
from subquad.utils.cores import usable_threads
from subquad.utils.display import metric_text
from subquad.utils.errors import UserError
from subquad.utils.log_filters import quieten

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Predictions:
    """names: of the rows. values: [rows, classes] probabilities, or [rows, 1] numbers where there are no classes."""

    names: list[str]
    classes: list[str]
    values: np.ndarray


def evaluate_missing(config: DictConfig) -> None:
    """Evaluates a finished run on each entry of `evaluate` that has no result yet, and saves the results.

    The data are read from the current `data.root`, which may differ from the one used in training. A failure is written
    to the folder of the run and removed when a later attempt succeeds.
    """
    run = Path(config.paths.run)
    machine.source()
    try:
        _evaluate_missing(config, run)
    except Exception as error:
        records.write_error(str(error), traceback.format_exc(), run)
        raise
    (run / records.ERROR).unlink(missing_ok=True)


def _evaluate_missing(config: DictConfig, run: Path) -> None:
    root = {"root": config.data.root} if "root" in config.data else {}
    for data_changes in evaluations(config):
        (run / records.EVALUATIONS).mkdir(exist_ok=True)
        with FileLock(run / records.EVALUATIONS / ".lock"):
            if records.read_evaluation(run, data_changes) is None:
                name, metrics, _ = all_metrics(run, "test", root | data_changes)
                records.write_evaluation(run, data_changes, metrics, machine.facts())
                log.info("%s %s with %s", name, metric_text(name, metrics[name]), _given(data_changes))


def evaluations(config: DictConfig) -> list[dict[str, Any]]:
    """The entries of `evaluate`: changed settings of the data. Raises UserError for one that the data do not take."""
    settings: Any = OmegaConf.to_container(config.data, resolve=True)
    found: Any = OmegaConf.to_container(config.evaluate, resolve=True)
    for changes in found:
        changed_data(settings, changes)
    return list(found)


def _given(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"data.{key}={value}" for key, value in changes.items())


def evaluate(run: Path, split: str, changes: Mapping[str, Any] | None = None) -> tuple[str, float, float | None]:
    """Evaluates the best checkpoint of a run on a split of its data.

    Args:
        run: folder of a finished run, or one with no other below it.
        split: "val" or "test".
        changes: settings of the data that differ from those of the run, such as `multiply` of ListOps or the `size` of
            images.

    Returns:
        The name of the task's metric, its value now and its value in the record (None where the record has none).

    Raises UserError as `all_metrics`.
    """
    name, metrics, record = all_metrics(run, split, changes)
    return name, metrics[name], record.metrics.get(name)


def all_metrics(
    run: Path, split: str, changes: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, float], records.Record]:
    """As `evaluate`, with every metric of the task.

    Returns:
        The name of the task's metric, all metrics by name, and the record of the run.

    Raises:
        UserError: the folder holds no finished run or several, the best checkpoint is missing, the files of the data
            have changed, or the changed data do not fit the weights.
    """
    if split not in ("val", "test"):
        raise UserError(f'There is no split "{split}" to evaluate; choose test or val.')
    found = _Trained.read(run, changes or {})
    [metrics] = found.run(found.trainer.test if split == "test" else found.trainer.validate, verbose=False)
    if not math.isfinite(loss := metrics.get("val/loss", 0)):  # the test finds such outputs itself
        raise UserError(f"The loss of {found.folder} on the validation rows is {loss}, so there is no score.")
    return f"{split}/{found.module.metric_name}", dict(metrics), found.record


def predict(
    source: str | Path, place: Path, changes: Mapping[str, Any] | None = None, *, trust_code: bool = False
) -> Predictions:
    """The answers of a trained model on rows of the user without labels.

    Args:
        source: folder of a finished run on the user's own data, or one with no other below it; or a bundle: a file, a
            folder with one, or hf://<repository>.
        place: a file or folder like one that it was trained on; labels in it are not read.
        changes: settings of the data that differ from those of the run. Those of reading, such as the encoding, are
            of `place` only; others, such as the place of the training files, of the run's own data.
        trust_code: whether a bundle may have classes from outside of Subquad.

    Raises UserError as `all_metrics` and `load_pretrained`, and for data of another kind, rows that cannot be read, and
    outputs that are not finite.
    """
    if is_bundle(str(source)):
        found = _of_bundle(str(source), changes or {}, trust_code)
    else:
        found = _of_run(Path(source), changes or {})
    if not place.exists():
        raise UserError(f"data={place} does not exist; correct the path.")
    rows, names = found.data.unlabelled(place)
    found.data.test_on(rows)
    order = np.concatenate(EvalBatches(rows.lengths, found.data.eval_batch_size).batches)
    outputs = torch.cat(found.run(found.trainer.predict)).float()[np.argsort(order)]
    if wrong := (~outputs.isfinite().all(1)).nonzero().flatten().tolist():
        raise UserError(
            f"The output of the model for {place}, row {names[wrong[0]]}, is not finite; check its values, or shorten "
            "the row."
        )
    classes = found.data.class_names
    return Predictions(names, classes, (outputs.softmax(1) if classes else outputs).numpy())


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A model, the data that it takes, and the trainer that runs it.

    weights: the checkpoint with the weights of the model; None where it has them.
    """

    data: SplitData
    module: pl.LightningModule
    trainer: pl.Trainer
    runtime: Runtime
    weights: Path | None = None

    def run(self, method: Callable[..., Any], **settings: Any) -> Any:
        """What a method of the trainer returns for the model."""
        if self.weights is not None:
            settings |= {"ckpt_path": self.weights, "weights_only": True}
        with fitting_weights(), self.runtime.applied(self.module):
            return method(self.module, datamodule=TrainedOn(self.data, self.runtime), **settings)


@dataclass(frozen=True, kw_only=True)
class _Trained(_Model):
    """The model of a finished run, with the weights of its best checkpoint."""

    folder: Path
    record: records.Record
    module: Supervised

    @classmethod
    def read(cls, run: Path, changes: Mapping[str, Any]) -> Self:
        """changes: settings of the data that differ from those of the run. Raises UserError as `all_metrics`."""
        run, record = records.only_run(run)
        config = OmegaConf.create(record.config)
        config.data = changed_data(data_settings(record), changes)
        data = instantiate(config.data, _convert_="all")
        data.prepare_data()
        if changes and data.fingerprint != record.data_fingerprint:
            others = {key: value for key, value in changes.items() if key != "root"} or changes
            raise UserError(
                f"With {_given(others)} these are other data than those of this run; a run is evaluated on its own, "
                "whose test rows some settings change (data.multiply, data.size)."
            )
        check_data(data, record.data_fingerprint, run)
        read_best(run, record)
        settings: Any = OmegaConf.to_container(config.task.module, resolve=True)
        module: Supervised = instantiate(without_weights(settings), _convert_="all")(spec=data.spec)
        trainer = _trainer(config, _microbatches(config))
        runtime = Runtime.of(config, module.network, trainer)
        data.trainer = trainer
        limit_evaluation(trainer, module, data)
        return cls(
            folder=run, record=record, data=data, module=module, trainer=trainer, runtime=runtime,
            weights=run / records.BEST,
        )  # fmt: skip


class _Network(pl.LightningModule):
    """A network without a task, whose predictions are its outputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Batch) -> Tensor:
        outputs: Tensor = self.network(*batch.network_inputs)
        return outputs


def _of_run(run: Path, changes: Mapping[str, Any]) -> _Model:
    """The model of a run for further rows, which are read by the `changes` that are settings of reading."""
    _, record = records.only_run(run)
    names = cast(type[SplitData], get_class(record.config["data"]["_target_"])).reading_of_further
    of_files = {key: value for key, value in changes.items() if key not in names}
    found = _Trained.read(run, of_files)
    reading = {key: value for key, value in changes.items() if key in names}
    if not reading:
        return found
    data = instantiate(changed_data(data_settings(record), reading), _convert_="all")
    data.given_facts, data.trainer = found.data.portable_facts(), found.trainer
    data.eval_limit = found.data.eval_limit
    return replace(found, data=data)


def _of_bundle(source: str, changes: Mapping[str, Any], trust_code: bool) -> _Model:
    network, data = load_predictor(source, changes, trust_code=trust_code)
    record: Any = network.record
    config = OmegaConf.create(record["config"])
    data.trainer = trainer = _trainer(config, 1)
    gpu = isinstance(trainer.accelerator, CUDAAccelerator)
    runtime = Runtime().resolved(network, gpu, config.recipe.get("float32_precision", "highest"))
    return _Model(data=data, module=_Network(network), trainer=trainer, runtime=runtime)


def _trainer(config: DictConfig, microbatches: int) -> pl.Trainer:
    """A trainer for one process, even if several trained, in the precision of a run."""
    quieten()
    torch.set_num_threads(usable_threads())
    return pl.Trainer(
        accelerator="cpu" if config.trainer.accelerator == "cpu" else "auto", devices=1,
        precision=config.trainer.precision, logger=False, accumulate_grad_batches=microbatches,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        plugins=[LightningEnvironment()],
    )  # fmt: skip


def _microbatches(config: DictConfig) -> int:
    """Microbatches of a batch in training, as far as the run states the number of its processes.

    They determine how many rows are evaluated at a time.
    """
    devices, nodes = config.trainer.devices, config.trainer.num_nodes
    processes = devices * nodes if isinstance(devices, int) and isinstance(nodes, int) else 1
    return int(config.trainer.accumulate_grad_batches) * max(1, processes)


@contextmanager
def fitting_weights() -> Iterator[None]:
    """Turns torch's error about weights that do not fit the model into a UserError that names the first of them."""
    try:
        yield
    except RuntimeError as error:
        first, *reasons = str(error).splitlines() or [""]
        if "loading state_dict" not in first:
            raise
        raise UserError(
            f"The weights of this run do not fit these data ({' '.join(reasons[:1]).strip()}); longer sequences or "
            "larger images than in training need attention and positions whose weights do not depend on the length."
        ) from None


_DIVIDES = re.compile(r"protocol|split_seed|\w+_fraction|(max_)?cases")
"""Settings of data that decide which split a row belongs to."""


def changed_data(settings: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The data settings of a run, updated with `changes`.

    Raises UserError at a setting that the data do not have, and at one that decides which rows are trained on: with
    another value, training rows would be tested.
    """
    constructor = inspect.signature(get_class(settings["_target_"])).parameters.values()
    known = {p.name: p.default for p in constructor if p.kind is p.KEYWORD_ONLY} | settings
    if unknown := [key for key in changes if key not in known or key == "_target_"]:
        names = ", ".join(sorted(known.keys() - {"_target_"}))
        raise UserError(f"The data of this run have no data.{unknown[0]}; they have {names}.")
    if moving := [key for key, value in changes.items() if _DIVIDES.fullmatch(key) and value != known[key]]:
        raise UserError(
            f"data.{moving[0]}={changes[moving[0]]} divides the rows otherwise than in training, so that rows would be "
            "tested that this run was trained on; leave it out."
        )
    changed = settings | dict(changes)
    check_settings("data", changed)
    return changed
