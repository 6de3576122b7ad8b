"""Checks that records and checkpoints of a run fit the current data and model, and loads weights of other runs."""

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from subquad.backbones.encoder import Pretrainable
from subquad.data.split_data import SplitData
from subquad.records import Record
from subquad.tasks.supervised import Supervised
from subquad.training.lightning_data import TrainedOn
from subquad.utils.errors import UserError, explain, first_line

log = logging.getLogger(__name__)

_RESUMED = ("callbacks", "loops", "optimizer_states", "lr_schedulers")
"""Keys of a checkpoint that resuming needs, besides those of weights and data."""


def check_data(data: SplitData, trained_on: str, run: Path) -> None:
    """Raises UserError if the fingerprint of the prepared data differs from `trained_on`, the one of the run."""
    if data.fingerprint != trained_on:
        raise UserError(
            f"The data differ from those this run was trained on (fingerprint {data.fingerprint} now, {trained_on} "
            f"then); restore the old files, or delete {run} to train on the new ones."
        )


def check_finished(config: DictConfig, record: Record, run: Path) -> None:
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


def check_last(checkpoint: Path, module: Supervised, data: SplitData, run: Path) -> None:
    """Raises UserError if a run cannot resume from a checkpoint: it is damaged, or of another model or other data."""
    content = read_checkpoint(checkpoint, run, TrainedOn.__qualname__, *_RESUMED)
    expected, stored = (_shapes(weights) for weights in (module.state_dict(), content["state_dict"]))
    if expected != stored:
        name = next(name for name in (*expected, *stored) if expected.get(name) != stored.get(name))
        raise _damaged(checkpoint, f"{name} is of another model", run)
    check_data(data, content[TrainedOn.__qualname__]["fingerprint"], run)


def check_best(checkpoint: Path, monitor: str, best: float, run: Path) -> None:
    """Raises UserError if the checkpoint's monitored metric is not the best value of the run.

    A run may be killed after its best checkpoint of an epoch is written and before the last one is. The epoch is then
    trained again. If it gives other numbers, as on a GPU, the best checkpoint would keep the earlier weights.
    """
    stored = read_checkpoint(checkpoint, run, "metrics")["metrics"].get(monitor)
    if stored != best:
        raise UserError(
            f"{checkpoint} has {monitor} {stored} and the best epoch of this run has {best}; delete {run} to train "
            "again."
        )


def read_checkpoint(checkpoint: Path, run: Path, *needed: str) -> dict[str, Any]:
    """Reads a checkpoint of a run; raises UserError if it is damaged or lacks one of the needed keys."""
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise _damaged(checkpoint, _why(error), run) from None
    for key in ("state_dict", *needed):
        if not isinstance(content, dict) or not isinstance(content.get(key), dict | list):
            raise _damaged(checkpoint, f"it holds no {key}", run)
    return content


def _damaged(checkpoint: Path, why: str, run: Path) -> UserError:
    return UserError(f"{checkpoint} is damaged, or of an earlier version ({why}); delete {run} to train again.")


def _shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(weight, "shape", None) for name, weight in weights.items()}


def load_weights(module: Supervised, checkpoint: Path) -> None:
    """Loads the weights of another run from its best.ckpt or last.ckpt; raises UserError if they do not fit.

    A `Pretrainable` network adapts them with `adapt_state_dict`.
    """
    try:
        weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
        if isinstance(module.network, Pretrainable):
            network = {name.removeprefix("network."): weight for name, weight in weights.items()}
            weights = {f"network.{name}": weight for name, weight in module.network.adapt_state_dict(network).items()}
        module.load_state_dict(weights)
    except UserError:
        raise
    except (
        OSError, EOFError, RuntimeError, KeyError, IndexError, TypeError, AttributeError, pickle.UnpicklingError
    ) as error:  # fmt: skip
        raise UserError(
            f"{checkpoint} has no weights for this model ({_why(error)}); set ckpt_path to a best.ckpt or last.ckpt of "
            "a run of the same sizes."
        ) from None


def _why(error: Exception) -> str:
    """One line on what is wrong with a checkpoint, without torch's advice to load it unsafely."""
    if isinstance(error, pickle.UnpicklingError | EOFError | IndexError):
        return "it is not a checkpoint of this project, or truncated"
    if isinstance(error, KeyError):
        return f"it holds no {error}"
    return first_line(error)
