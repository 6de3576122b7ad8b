"""Builds Lightning's trainer from a configuration and checks its settings before anything is started."""

import pytorch_lightning as pl
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from pytorch_lightning.strategies import DDPStrategy

from subquad.data.split_data import SplitData
from subquad.training.callbacks.checkpoints import RelativePaths, SpareCheckpoints
from subquad.training.callbacks.fix_weights import FixWeights
from subquad.training.callbacks.hooks import SkipEmptyHooks
from subquad.training.callbacks.ignore_sigterm import IgnoreSigterm
from subquad.training.callbacks.prune import of_search
from subquad.training.memory_plan import given_microbatches
from subquad.training.metrics_csv import KeepHistory, MetricsCSV
from subquad.training.strategies import SharedBatches
from subquad.utils.compiling import check_microbatches
from subquad.utils.errors import UserError, explain, first_line

_REFUSED = {
    "sync_batchnorm": "Batch normalisation always spans all processes",
    "deterministic": "Deterministic kernels are selected by runtime.deterministic=true",
    "fast_dev_run": "debug=fast_dev_run trains a step with a checkpoint and a record, which runs end with",
    "benchmark": "cuDNN's measuring of kernels would make runs differ",
}
"""Arguments of Lightning's trainer that a run cannot have, and why."""


def build_trainer(config: DictConfig, data: SplitData) -> pl.Trainer:
    """Builds the trainer of a run; raises UserError if its settings conflict or do not fit the machine or the data."""
    for key in filter(config.trainer.get, _REFUSED):
        raise UserError(f"{_REFUSED[key]}; leave trainer.{key} out.")
    precision = str(config.trainer.precision)
    microbatches = given_microbatches(config.trainer.accumulate_grad_batches)
    try:
        environment = _slurm_environment()
        plugins = [*instantiate(config.trainer.plugins or [], _convert_="all"), *environment]
        trainer: pl.Trainer = instantiate(
            config.trainer, plugins=plugins, accumulate_grad_batches=microbatches, _convert_="all"
        )
    except (InstantiationException, RuntimeError) as error:
        reason = first_line(error.__cause__ or error)
        unknown = UserError(f"The trainer cannot be built ({reason}); see the keys of trainer=.")
        raise explain(error) or unknown from error
    if not trainer.checkpoint_callbacks:
        raise UserError(
            "A run needs its checkpoints; leave trainer.callbacks out, and add yours as +callbacks.<name>=."
        )
    _check(trainer, precision)
    check_microbatches(config.get("compile_model", False), microbatches)
    if data.batch_size % (trainer.world_size * microbatches):
        raise UserError(
            f"A batch of {data.batch_size} cannot be divided among {trainer.world_size} processes with {microbatches} "
            "microbatches each; choose trainer.devices, trainer.accumulate_grad_batches and recipe.batch_size so that "
            "the product of the first two divides the third."
        )
    for saver in trainer.checkpoint_callbacks:
        if saver.filename == "last":  # type: ignore[attr-defined]
            callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
            callbacks.insert(callbacks.index(saver), SpareCheckpoints(saver))  # type: ignore[arg-type]
    histories = [KeepHistory(logger) for logger in trainer.loggers if isinstance(logger, MetricsCSV)]
    more = [RelativePaths(), *histories, FixWeights(), SkipEmptyHooks(), *of_search(config.task.monitor)]
    trainer.callbacks += more  # type: ignore[attr-defined]
    if environment:
        trainer.callbacks.append(IgnoreSigterm())  # type: ignore[attr-defined]
    return trainer


def _check(trainer: pl.Trainer, precision: str) -> None:
    """Raises UserError for loggers that are none, no end, and a precision or strategy that does not fit the machine."""
    if strange := [logger for logger in trainer.loggers if not isinstance(logger, Logger)]:
        raise UserError(f"trainer.logger has {strange[0]!r}, which is none; choose logger=csv, wandb or tensorboard.")
    if not any(isinstance(logger, MetricsCSV) for logger in trainer.loggers):
        raise UserError("A run needs the history of its metrics; set neither trainer.logger nor ~logger.csv.")
    if trainer.max_epochs == trainer.max_steps == -1:
        raise UserError("Training has no end: trainer.max_epochs and trainer.max_steps are -1; set either of them.")
    if isinstance(trainer.accelerator, CPUAccelerator) and precision in ("16-mixed", "16-true", "16"):
        raise UserError(f"A CPU cannot train with trainer.precision={precision}; choose bf16-mixed, or a GPU.")
    if precision in ("16-true", "bf16-true", "64-true", "64"):
        raise UserError(f"Weights are trained in float32, not in trainer.precision={precision}; choose bf16-mixed.")
    if isinstance(trainer.strategy, DDPStrategy) and not isinstance(trainer.strategy, SharedBatches):
        raise UserError(
            f"There are {trainer.world_size} processes but no strategy for them; choose trainer=ddp (GPUs), "
            "trainer=ddp_cpu or trainer=fsdp."
        )


def _slurm_environment() -> list[SLURMEnvironment]:
    """Lightning's environment for processes started by srun, without its requeueing; empty outside of Slurm.

    Lightning requeues a job at SIGUSR1 with a checkpoint from the middle of an epoch, and the resumed run would not
    give the numbers of an uninterrupted one. `subquad.sweep.slurm.job` resumes from the last complete epoch instead.
    """
    if TorchElasticEnvironment.detect() or not SLURMEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)]
