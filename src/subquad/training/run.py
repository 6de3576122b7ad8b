"""One training run, from its configuration to its record."""

import logging
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn, cast

import pytorch_lightning as pl
import torch
from filelock import FileLock, Timeout
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from subquad import records
from subquad.backbones.layerwise import recompute_layers
from subquad.config.fingerprint import identity, mechanism, run_of
from subquad.config.settings import check_settings
from subquad.data.split_data import SplitData
from subquad.measure import machine
from subquad.measure.memory import process_peak
from subquad.tasks.supervised import Supervised
from subquad.training import summary, wandb_run
from subquad.training.callbacks.wall_clock import WallClock
from subquad.training.distributed import patience, preempted, rank, several, together
from subquad.training.lightning_data import TrainedOn
from subquad.training.resume import check_best, check_last, load_weights
from subquad.training.trainer import made_trainer
from subquad.utils.cores import usable_threads
from subquad.utils.errors import UserError
from subquad.utils.log_filters import quieten

log = logging.getLogger(__name__)


def train(config: DictConfig) -> records.Record:
    """Trains, tests the best checkpoint and writes the record. An interrupted run goes on from its last checkpoint.

    Of several processes that train one run together, the first locks it and writes; the others end with their work.
    Raises UserError while another command trains the same run; what that has finished is not trained again. Any failure
    is kept in the run directory.
    """
    run = Path(config.paths.run)
    if rank():
        logging.getLogger().setLevel(logging.ERROR)  # the first process says it
        _train(config, run)
        raise SystemExit
    try:
        with FileLock(run / ".lock", timeout=patience()):
            # Another process may have finished the run while this one was starting or waiting for the lock.
            if not several() and (finished := records.read(run)) is not None:
                return finished
            record = _train(config, run)
            assert record is not None
            summary.draw_curve(record, run, config.task.monitor)
            records.write(record, run)
            return record
    except Timeout:
        raise UserError(
            f"Another process is training this run right now ({run}); wait for it, or change a setting."
        ) from None


def _train(config: DictConfig, run: Path) -> records.Record | None:
    # First: instantiate resolves interpolations in place, and would change what ${fingerprint:} sees.
    name = records.fingerprint(identity(config))
    resolved = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    started = time.time()
    try:
        return _fit(OmegaConf.create(resolved), resolved, run, name)
    except Exception as error:
        # Where one of several processes fails, the others lose their connection to it: only the first error tells why.
        # Lost connections and dead workers are then no errors of the run, nor is a file that Ctrl-C cut short.
        if preempted() or isinstance(error.__context__, KeyboardInterrupt):
            _end_interrupted()
        wandb_run.close_failed()
        first = records.read_error(run, since=started)
        if first is None:
            records.write_error(str(error), traceback.format_exc(), run)
            raise
        if rank():
            raise SystemExit(1) from None
        raise UserError(f"Another process of this run failed: {first} ({run / records.ERROR} has it all)") from error
    except (KeyboardInterrupt, SystemExit):  # Lightning turns signals into exits, some of them with status 0
        _end_interrupted()


def _end_interrupted() -> NoReturn:
    log.warning("Interrupted; the same command goes on from the last checkpoint, or starts again where there is none.")
    raise SystemExit(130) from None


def _fit(config: DictConfig, settings: dict[str, Any], run: Path, name: str) -> records.Record | None:
    torch.set_num_threads(usable_threads())
    quieten()
    if type(config.seed) is not int or not 0 <= config.seed < 2**32:
        raise UserError(f"seed is {config.seed}; it must lie between 0 and {2**32 - 1}, a whole number.")
    tags = _tags(settings["tags"])
    if missing := OmegaConf.missing_keys(config.data):
        key = min(missing)
        raise UserError(f"{key} has no value; say {key}=<value> on the command line.")
    start = None if config.ckpt_path is None else run_of(Path(config.ckpt_path))
    if start is not None and not (start / records.RESULT).exists():
        raise UserError(f"The run that this one starts from has not finished ({start}); train that one first.")
    for section in ("attention", "backbone", "data"):
        check_settings(section, settings[section])
    pl.seed_everything(config.seed, workers=True, verbose=False)
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    module: Supervised = instantiate(config.task.module, _convert_="all")(spec=data.spec)
    trainer = made_trainer(config, data)
    for logger in trainer.loggers:
        logger.log_hyperparams(settings)
    attention = mechanism(config)
    wandb_run.describe(trainer.loggers, tags, attention, name)

    checkpoints = run / "checkpoints"
    if (checkpoints / "last.ckpt").exists():
        check_last(checkpoints / "last.ckpt", module, data, run)
        log.info("Going on from the last checkpoint of this run.")
    elif config.ckpt_path is not None:
        load_weights(module, Path(config.ckpt_path))
    if config.checkpoint_activations:
        recompute_layers(module.network)
    parameters = module.parameter_count  # before they are divided among processes
    with together(trainer):
        best, tested = _trained_and_tested(trainer, module, data, run, config.task.monitor)
    if rank():
        return None
    metrics = {**_last_epoch(run), **tested} | ({} if best is None else {config.task.monitor: best})

    [clock] = [c for c in trainer.callbacks if isinstance(c, WallClock)]  # type: ignore[attr-defined]
    record = records.Record(
        fingerprint=name,
        seed=config.seed,
        task=str(config.task.name),
        attention=attention,
        recipe=str(config.recipe.name),
        protocol=str(config.protocol),
        scale=str(config.scale),
        metrics=metrics,
        baselines=data.baselines(),
        parameters=parameters,
        steps=trainer.global_step,
        wall_seconds=clock.seconds,
        **process_peak(module.device),  # type: ignore[arg-type]
        data_fingerprint=data.fingerprint,
        tags=tags,
        config=settings,
        **machine.facts(),
    )
    wandb_run.summarise(trainer, record)
    return record


def _trained_and_tested(
    trainer: pl.Trainer, module: Supervised, data: SplitData, run: Path, monitor: str
) -> tuple[float | None, dict[str, float]]:
    """The best validation metric, and what its checkpoint reaches on the test split.

    None where `callbacks.best` monitors nothing: its checkpoint is then that of the last step.
    """
    last, kept = run / "checkpoints" / "last.ckpt", run / "checkpoints" / "best.ckpt"
    trainer.fit(module, TrainedOn(data), ckpt_path=last if last.exists() else None, weights_only=True)
    best = trainer.checkpoint_callback.best_model_score  # type: ignore[union-attr]
    if not kept.exists() or not _validations(run):
        raise UserError(
            f"Training ended after {trainer.global_step} steps, before its first validation; raise limits.steps "
            "or trainer.max_steps, or lower recipe.steps_per_epoch."
        )
    if best is not None:
        check_best(kept, monitor, float(best), run)
    [tested] = trainer.test(module, TrainedOn(data), ckpt_path=str(kept), verbose=False, weights_only=True)
    return None if best is None else float(best), {name: float(value) for name, value in tested.items()}


def _tags(given: Any) -> list[str]:
    """A list of words: a single one is a list of itself. Raises UserError at anything else."""
    tags = [] if given is None else given if isinstance(given, list) else [given]
    if wrong := [tag for tag in tags if type(tag) not in (str, int, float)]:
        raise UserError(f"tags has {wrong[0]!r}; it takes words, as in tags=[first,second].")
    return [str(tag) for tag in tags]


def _last_epoch(run: Path) -> dict[str, float]:
    """What the last epoch logged; from the file, because a run killed in its test has no epoch left to train."""
    last = _validations(run)[-1]
    return {name: value for name, value in last.items() if name != "epoch" and not name.startswith("test/")}


def _validations(run: Path) -> list[dict[str, float]]:
    """What each epoch logged that ended with a validation."""
    return [row for row in records.read_history(run / "metrics.csv").values() if "val/loss" in row]
