"""One training run, from its configuration to its record."""

import dataclasses
import logging
import time
import traceback
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import pytorch_lightning as pl
import torch
from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from subquad import records
from subquad.config.fingerprint import finished, identity, mechanism, run_of
from subquad.config.run_settings import check_run, stated_elsewhere
from subquad.config.settings import check_each, check_settings
from subquad.data.split_data import SplitData
from subquad.measure import machine
from subquad.measure.memory import process_peak, reset_peak
from subquad.tasks.supervised import Supervised
from subquad.training import summary, wandb_run
from subquad.training.callbacks.share_cores import ShareCores
from subquad.training.callbacks.wall_clock import WallClock
from subquad.training.distributed import has_peers, lock_timeout, managed_processes, preempted, rank
from subquad.training.evaluation import evaluations
from subquad.training.lightning_data import TrainedOn
from subquad.training.memory_plan import plan_memory
from subquad.training.resume import check_best, check_last, load_weights
from subquad.training.runtime import Runtime
from subquad.training.trainer import build_trainer
from subquad.utils.cores import usable_threads
from subquad.utils.errors import UserError
from subquad.utils.killed import estimate_kept
from subquad.utils.log_filters import quieten
from subquad.utils.malloc import spared_memory

log = logging.getLogger(__name__)


def train(config: DictConfig) -> records.Record:
    """Trains a run, tests its best checkpoint and writes its record; resumes an interrupted run.

    In distributed training the first process locks the run and writes the record; the others exit after training.
    Raises UserError while another command trains the same run. A finished run is not trained again. Any failure is
    written to the run's folder.
    """
    run = Path(config.paths.run)
    machine.source()
    if rank():
        logging.getLogger().setLevel(logging.ERROR)  # the first process logs the rest
        _train(config, run)
        raise SystemExit
    try:
        with FileLock(run / ".lock", timeout=lock_timeout()):
            # Another process may have finished the run while this one was starting or waiting for the lock.
            if not has_peers() and (record := finished(config)) is not None:
                return record
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
    # Before anything else: instantiate resolves interpolations in place, which would change the result of
    # ${fingerprint:}.
    known = identity(config)
    name = records.fingerprint(known)
    resolved = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    if "code" in known:
        resolved["code"] = known["code"]
    started = time.time()
    try:
        return _fit(OmegaConf.create(resolved), resolved, run, name)
    except Exception as error:
        # If one of several processes fails, the others lose their connection to it: only the first error is the cause.
        # After a preemption or Ctrl-C, lost connections, dead workers and truncated files are not errors of the run.
        if preempted() or isinstance(error.__context__, KeyboardInterrupt):
            _end_interrupted()
        wandb_run.close_failed()
        first_error = records.read_error(run, since=started)
        if first_error is None:
            records.write_error(str(error), traceback.format_exc(), run)
            raise
        if rank():
            raise SystemExit(1) from None
        raise UserError(
            f"Another process of this run failed: {first_error} (details in {run / records.ERROR})"
        ) from error
    except (KeyboardInterrupt, SystemExit):  # Lightning turns signals into exits, some of them with status 0
        _end_interrupted()


def _end_interrupted() -> NoReturn:
    log.warning("Interrupted; the same command resumes from the last checkpoint, or starts again if there is none.")
    raise SystemExit(130) from None


def _fit(config: DictConfig, settings: dict[str, Any], run: Path, name: str) -> records.Record | None:
    torch.set_num_threads(usable_threads())
    quieten()
    wandb_run.quieten(settings.get("logger") or {})
    check_run(config)
    tags = _tags(settings["tags"])
    if missing := OmegaConf.missing_keys(config.data):
        key = min(missing)
        raise UserError(f"{key} has no value; set {key}=<value> on the command line.")
    start = None if config.ckpt_path is None else run_of(Path(config.ckpt_path))
    if start is not None and not (start / records.RESULT).exists():
        raise UserError(f"The run that this one starts from has not finished ({start}); train that one first.")
    for section in ("attention", "backbone", "data", "runtime", "optimizer", "scheduler", "trainer"):
        check_settings(section, stated_elsewhere(section, settings.get(section, {})))
    for section in ("callbacks", "logger"):
        check_each(section, settings[section])
    check_settings("task.module", settings["task"]["module"])
    evaluations(config)
    pl.seed_everything(config.seed, workers=True, verbose=False)
    data = instantiate(config.data, _convert_="all")
    trainer = data.trainer = build_trainer(config, data)
    spec = _spec(data)
    module: Supervised = instantiate(config.task.module, _convert_="all")(spec=spec)
    plan = plan_memory(config, trainer, module, spec, data.batch_size, partial(_rows, data), data.eval_batch_size)
    plan.apply(trainer, module, data, settings)
    data.prepare_data()
    for logger in trainer.loggers:
        logger.log_hyperparams(settings)
    attention = mechanism(config)
    wandb_run.describe(trainer.loggers, tags, attention, name)

    owner = records.run_name(name, config.seed)
    if (run / records.LAST).exists():
        check_last(module, data, run, owner)
        log.info("Resuming from the last checkpoint of this run.")
    elif config.ckpt_path is not None:
        load_weights(module, Path(config.ckpt_path))
    parameters = module.parameter_count  # before they are sharded among processes
    runtime = Runtime.of(config, module.network, trainer)
    device = trainer.strategy.root_device  # after its last loop, Lightning moves the module to the CPU
    reset_peak(device)
    kept = nullcontext() if rank() else estimate_kept(run, plan.estimate)
    with kept, spared_memory(plan.frugal), runtime.applied(module.network), managed_processes(trainer):
        best, test_metrics = _train_and_test(trainer, module, TrainedOn(data, runtime, owner), run)
    if rank():
        return None
    facts = machine.facts()
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    [clock] = [c for c in callbacks if isinstance(c, WallClock)]
    if fewest := [c.fewest for c in callbacks if isinstance(c, ShareCores) and c.fewest is not None]:
        facts["machine"]["threads"] = fewest[0]
    record = records.Record(
        fingerprint=name,
        seed=config.seed,
        task=str(config.task.name),
        attention=attention,
        recipe=str(config.recipe.name),
        protocol=str(config.protocol),
        scale=str(config.scale),
        metrics={**_last_epoch(run), **test_metrics, **best},
        baselines=data.baselines(),
        rows={name: len(split) for name, split in data.splits.items()},
        parameters=parameters,
        steps=trainer.global_step,
        wall_seconds=clock.seconds,
        **process_peak(device),  # type: ignore[arg-type]
        data_fingerprint=data.fingerprint,
        tags=tags,
        config=settings,
        runtime=dataclasses.asdict(runtime)
        | ({"memory": f"{plan.estimate}: {plan.measures}"} if plan.measures else {}),
        files=records.files_of(run),
        overrides=list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else [],
        **facts,
    )
    wandb_run.summarise(trainer.loggers, record)
    return record


def _spec(data: SplitData) -> Any:
    """The spec of data, which are read only if it is not known without them."""
    with suppress(AttributeError, OSError, UserError):
        return data.planned_spec
    data.prepare_data()
    return data.spec


def _rows(data: SplitData) -> int:
    """The number of training rows; the data are read only if it is not known without them."""
    if (planned := data.planned_rows) is not None:
        return planned
    data.prepare_data()
    return len(data.splits["train"])


def _train_and_test(
    trainer: pl.Trainer, module: Supervised, data: TrainedOn, run: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """Trains, and tests the best checkpoint.

    Returns:
        The best value of the metric that `callbacks.best` monitors, and the test metrics of its checkpoint. The former
        is empty if it monitors nothing; its checkpoint is then the one of the last step.
    """
    last_path, best_path = run / records.LAST, run / records.BEST
    trainer.fit(module, data, ckpt_path=last_path if last_path.exists() else None, weights_only=True)
    chosen: Any = trainer.checkpoint_callback
    if not best_path.exists() or not _validations(run):
        raise UserError(
            f"Training ended after {trainer.global_step} steps, before its first validation; raise limits.steps "
            "or trainer.max_steps, or lower recipe.steps_per_epoch."
        )
    best = {} if chosen.best_model_score is None else {chosen.monitor: float(chosen.best_model_score)}
    check_best(run, data.run, best)
    [metrics] = trainer.test(module, data, ckpt_path=str(best_path), verbose=False, weights_only=True)
    return best, {name: float(value) for name, value in metrics.items()}


def _tags(setting: Any) -> list[str]:
    """The tags as a list of strings; a single tag becomes a list. Raises UserError for anything else."""
    tags = [] if setting is None else setting if isinstance(setting, list) else [setting]
    if wrong := [tag for tag in tags if type(tag) not in (str, int, float)]:
        raise UserError(f"tags has {wrong[0]!r}; it takes words, as in tags=[first,second].")
    return [str(tag) for tag in tags]


def _last_epoch(run: Path) -> dict[str, float]:
    """Metrics of the last epoch, from the file because a run killed during its test trains no epoch when it resumes."""
    last = _validations(run)[-1]
    return {name: value for name, value in last.items() if name != "epoch" and not name.startswith("test/")}


def _validations(run: Path) -> list[dict[str, float]]:
    """Metrics of each epoch that ended with a validation."""
    return [row for row in records.read_history(run / records.HISTORY).values() if "val/loss" in row]
