"""Checks that records and checkpoints of a run fit the current data and model, and loads weights of other runs."""

import logging
import os
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from subquad import records
from subquad.backbones.encoder import Pretrainable
from subquad.config.fingerprint import run_of
from subquad.config.own_code import own_code
from subquad.data.split_data import SplitData
from subquad.tasks.supervised import Supervised
from subquad.training.lightning_data import TrainedOn
from subquad.utils.errors import UserError, explain, first_line

log = logging.getLogger(__name__)

_RESUMED = ("callbacks", "loops", "optimizer_states", "lr_schedulers")
"""Keys of a checkpoint that resuming needs, besides those of weights and data."""
_UNREADABLE = (
    OSError, EOFError, RuntimeError, ValueError, IndexError, pickle.UnpicklingError, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""What zipfile and torch raise for a damaged file."""


def data_settings(record: records.Record) -> dict[str, Any]:
    """The data settings of a run, with the current data folder where that of the run is not on this machine (any more).

    Whether it has the same data is for `check_data` to say.
    """
    settings = dict(record.config["data"])
    if "root" in settings and not Path(settings["root"]).exists():
        settings["root"] = str(Path(os.environ.get("SUBQUAD_DATA") or "data").absolute())
    return settings


def check_data(data: SplitData, trained_on: str, run: Path) -> None:
    """Raises UserError if the fingerprint of the prepared data differs from `trained_on`, the one of the run."""
    if data.fingerprint != trained_on:
        raise UserError(
            f"The data differ from those this run was trained on (fingerprint {data.fingerprint} now, {trained_on} "
            f"then); restore the old files, or delete {run} to train on the new ones."
        )


def check_finished(config: DictConfig, record: records.Record, run: Path) -> None:
    """Raises UserError if the data of a finished run have changed; warns if they are not available for comparison."""
    settings: Any = OmegaConf.to_container(config.data, resolve=True)
    try:
        data: SplitData = instantiate(settings, _convert_="all")
        data.require()
        data.prepare_data()
        _ = data.fingerprint
    except Exception as error:
        if (reason := explain(error)) is None:
            raise
        log.warning("The data that this finished run was trained on cannot be checked: %s", reason)
        return
    check_data(data, record.data_fingerprint, run)


def check_last(module: Supervised, data: SplitData, run: Path, name: str) -> None:
    """Raises UserError if a run cannot resume: last.ckpt is damaged, or of another run, another model or other data.

    name: that of the run, by its configuration and seed.
    """
    checkpoint = run / records.LAST
    content = read_checkpoint(checkpoint, run, name, TrainedOn.__qualname__, *_RESUMED)
    if "KeepHistory" not in content["callbacks"] or "run" not in content[TrainedOn.__qualname__]:
        raise _damaged(checkpoint, "it holds no history or name of its run", run)
    expected, stored = (_shapes(weights) for weights in (module.state_dict(), content["state_dict"]))
    if expected != stored:
        name = next(name for name in (*expected, *stored) if expected.get(name) != stored.get(name))
        raise _damaged(checkpoint, f"{name} is of another model", run)
    check_data(data, content[TrainedOn.__qualname__]["fingerprint"], run)


def check_best(run: Path, name: str, best: Mapping[str, float]) -> None:
    """Raises UserError if best.ckpt is damaged or of another run, or its monitored metric is not the run's best value.

    `best` is the name of the metric and its value, or empty.

    A run may be killed after its best checkpoint of an epoch is written and before the last one is. The epoch is then
    trained again. If it gives other numbers, as on a GPU, the best checkpoint would keep the earlier weights.
    """
    checkpoint = run / records.BEST
    stored = read_checkpoint(checkpoint, run, name, "metrics")["metrics"]
    for monitor, value in best.items():
        if stored.get(monitor) != value:
            raise UserError(
                f"{checkpoint} has {monitor} {stored.get(monitor)} and the best epoch of this run has {value}; delete "
                f"{run} to train again."
            )


def read_best(run: Path, record: records.Record) -> dict[str, Any]:
    """Reads the best checkpoint of a finished run.

    Raises UserError if it is not the one that the run ended with, or was trained with other code of the user's classes.
    """
    check_code(record.config, run)
    return read_checkpoint(records.check_file(run, record, records.BEST), run, record.name)


def check_code(config: Mapping[str, Any], source: Path) -> None:
    """Raises UserError if the user's classes of a run have other code now. Imports these classes."""
    code = config.get("code", {})
    for target, now in own_code([{"_target_": target} for target in code]).items():
        if not now and code[target]:
            raise UserError(f"{target} of {source} cannot be imported; run this in the folder of its module.")
        if now != code[target]:
            raise UserError(f"{source} was trained with other code of {target}; restore that code, or train again.")


def read_checkpoint(checkpoint: Path, run: Path, name: str, *needed: str) -> dict[str, Any]:
    """Reads a checkpoint of the run with this name; raises UserError if it is damaged, of another run, or lacks a key.

    needed: keys that it must have. A best checkpoint of an earlier version does not name its run.
    """
    try:
        content = _loaded(checkpoint)
    except _UNREADABLE as error:
        raise _damaged(checkpoint, _why(error), run) from None
    for key in ("state_dict", *needed):
        if not isinstance(content, dict) or not isinstance(content.get(key), dict | list):
            raise _damaged(checkpoint, f"it holds no {key}", run)
    owner = content.get(TrainedOn.__qualname__, {}).get("run")
    records.check_owner(checkpoint, owner, name, f"restore its own, or delete {run} to train again")
    return content


def _loaded(checkpoint: Path) -> Any:
    """The content of a checkpoint whose bytes fit their checksums, which torch writes but does not compare."""
    with zipfile.ZipFile(checkpoint) as archive:
        if archive.testzip() is not None:
            raise EOFError
    return torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)


def _damaged(checkpoint: Path, why: str, run: Path) -> UserError:
    return UserError(f"{checkpoint} is damaged, or of an earlier version ({why}); delete {run} to train again.")


def _shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(weight, "shape", None) for name, weight in weights.items()}


def load_weights(module: Supervised, checkpoint: Path) -> None:
    """Loads the weights of another run from its best.ckpt or last.ckpt; raises UserError if they do not fit.

    A `Pretrainable` network adapts them with `adapt_state_dict`.
    """
    try:
        run = run_of(checkpoint)
        record = None if run is None else records.read(run)
        if run is not None and record is not None:
            records.check_file(run, record, f"checkpoints/{checkpoint.name}")
        weights = _loaded(checkpoint)["state_dict"]
        if isinstance(module.network, Pretrainable):
            network = {name.removeprefix("network."): weight for name, weight in weights.items()}
            weights = {f"network.{name}": weight for name, weight in module.network.adapt_state_dict(network).items()}
        module.load_state_dict(weights)
    except UserError:
        raise
    except (*_UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{checkpoint} has no weights for this model ({_why(error)}); set ckpt_path to a best.ckpt or last.ckpt of "
            "a run of the same sizes."
        ) from None


def _why(error: Exception) -> str:
    """One line on what is wrong with a checkpoint, without torch's advice to load it unsafely."""
    if isinstance(error, pickle.UnpicklingError | EOFError | IndexError | zipfile.BadZipFile | zlib.error):
        return "it is not a checkpoint of this project, or truncated"
    if isinstance(error, KeyError):
        return f"it holds no {error}"
    head, _, below = str(error).partition("\n")
    return below.strip().partition("\n")[0] if head.startswith("Error(s) in loading state_dict") else first_line(error)
