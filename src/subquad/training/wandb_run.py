"""Logging to Weights & Biases. It does not affect the fingerprint of a run, and nothing is read back from it."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from subquad.records import Record, read_curve
from subquad.training.distributed import rank
from subquad.utils.errors import UserError


def setting_name(attention: str, fingerprint: str) -> str:
    """Common name of the runs that differ in their seed only; dashboards group curves by it."""
    return f"{attention} {fingerprint}"


def quieten(loggers: Mapping[str, Any]) -> None:
    """Silences the client of a run that is not sent, and lets others print only what asks for action.

    `loggers` are the settings of logger=. Environment variables that the user has set are not changed. Raises UserError
    for a run that is sent while W&B does not answer, for which its client would wait 90 seconds after reading the data.
    """
    if "wandb" in loggers and not rank():
        local = loggers["wandb"].get("offline") or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
        os.environ.setdefault("WANDB_SILENT" if local else "WANDB_QUIET", "true")
        if local:
            os.environ.setdefault("WANDB_MODE", "offline")  # the client asks for it once, before Lightning says so
        import wandb  # slow

        client = wandb.setup()  # reads the variables; the first `wandb.init` would warn before it does
        if not local:
            _check_answer(str(client.settings.base_url))


def _check_answer(url: str) -> None:
    import requests

    try:
        requests.head(url, timeout=10)
    except requests.RequestException as error:
        raise UserError(
            f"W&B does not answer ({url}, {type(error).__name__}); check the network, or set logger.wandb.offline=true "
            "and send the run later."
        ) from None


def describe(loggers: Iterable[Any], tags: Sequence[str], attention: str, fingerprint: str) -> None:
    """Adds the tags and the setting's name to a run when it starts, so that dashboards can filter running runs."""
    from pytorch_lightning.loggers import WandbLogger

    for logger in loggers:
        if isinstance(logger, WandbLogger) and not rank():
            logger.experiment.tags = tuple(dict.fromkeys((*(logger.experiment.tags or ()), *tags)))
            choice = {"attention": attention, "setting": setting_name(attention, fingerprint)}
            logger.experiment.config.update({"choice": choice}, allow_val_change=True)


def close_failed() -> None:
    """Closes the open run as failed; otherwise the next job of a sweep would write into it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish(exit_code=1)


def summarise(loggers: Iterable[Any], record: Record) -> None:
    """Logs the final numbers and closes the run, so that the next job of a sweep opens its own.

    Prints how to send an offline run.
    """
    from pytorch_lightning.loggers import WandbLogger

    for logger in loggers:
        if isinstance(logger, WandbLogger):
            costs = {"rows": record.rows, "parameters": record.parameters, "wall_seconds": record.wall_seconds}
            logger.experiment.summary.update({**record.metrics, **costs, "baselines": record.baselines})
            run = logger.experiment
            run.finish()
            if run.offline and not run.disabled:
                folder = os.path.relpath(os.path.dirname(run.dir))
                Console(highlight=False).print(f"W&B: wandb sync {folder}", soft_wrap=True, markup=False)


def log_finished(config: DictConfig, record: Record, folder: Path) -> None:
    """Logs curves, settings and final numbers of a run that finished without W&B, if `logger=wandb` is chosen now."""
    loggers: Any = OmegaConf.to_container(config.logger or OmegaConf.create(), resolve=True)
    settings = loggers.get("wandb")
    if settings is None or any((folder / "wandb").glob(f"*run-*-{settings['id']}")):
        return
    quieten(loggers)
    logger = instantiate(settings, _convert_="all")
    logger.log_hyperparams(record.config)
    describe([logger], record.tags, record.attention, record.fingerprint)
    for step, row in read_curve(folder, record).items():
        logger.log_metrics(row, step)
    summarise([logger], record)
