"""Lightning's trainer from a configuration, and what cannot go together, said before anything is started."""

import pytorch_lightning as pl
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from pytorch_lightning.strategies import DDPStrategy

from subquad.data.split_data import SplitData
from subquad.training.callbacks.checkpoints import MovedCheckpoints, SpareCheckpoints
from subquad.training.callbacks.hooks import SkipEmptyHooks
from subquad.training.callbacks.ignore_sigterm import UntilKilled
from subquad.training.strategies import SharedBatches
from subquad.utils.errors import UserError, first_line


def made_trainer(config: DictConfig, data: SplitData) -> pl.Trainer:
    """The trainer of a run. Raises UserError where its settings exclude one another, or do not fit machine or data."""
    precision = str(config.trainer.precision)
    parts = config.trainer.accumulate_grad_batches
    if not isinstance(parts, int) or parts < 1:
        raise UserError(f"trainer.accumulate_grad_batches is {parts}; it must be a whole number of at least 1.")
    try:
        environment = _slurm()
        plugins = [*instantiate(config.trainer.plugins or [], _convert_="all"), *environment]
        trainer: pl.Trainer = instantiate(config.trainer, plugins=plugins, _convert_="all")
    except (InstantiationException, RuntimeError) as error:
        reason = first_line(error.__cause__ or error)
        raise UserError(f"The trainer cannot be built ({reason}); see the keys of trainer=.") from error
    if isinstance(trainer.accelerator, CPUAccelerator) and precision in ("16-mixed", "16-true", "16"):
        raise UserError(f"A CPU cannot train with trainer.precision={precision}; choose bf16-mixed, or a GPU.")
    if config.trainer.get("sync_batchnorm"):
        raise UserError("Batch normalisation is over all processes anyway; leave trainer.sync_batchnorm out.")
    if isinstance(trainer.strategy, DDPStrategy) and not isinstance(trainer.strategy, SharedBatches):
        raise UserError(
            f"There are {trainer.world_size} processes and nothing says how they share the work; choose trainer=ddp "
            "(GPUs), trainer=ddp_cpu or trainer=fsdp."
        )
    if data.batch_size % (trainer.world_size * parts):
        raise UserError(
            f"A batch of {data.batch_size} cannot be shared by {trainer.world_size} processes in "
            f"{parts} parts each; choose trainer.devices, trainer.accumulate_grad_batches and recipe.batch_size so "
            "that the first two divide the third."
        )
    for saver in trainer.checkpoint_callbacks:
        if saver.filename == "last":  # type: ignore[attr-defined]
            callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
            callbacks.insert(callbacks.index(saver), SpareCheckpoints(saver))  # type: ignore[arg-type]
    trainer.callbacks += [MovedCheckpoints(), SkipEmptyHooks()]  # type: ignore[attr-defined]
    if environment:
        trainer.callbacks.append(UntilKilled())  # type: ignore[attr-defined]
    return trainer


def _slurm() -> list[SLURMEnvironment]:
    """Slurm's where srun started this process: as Lightning finds it, but never the one that queues a job again.

    Lightning would do so at SIGUSR1, from a checkpoint in the middle of an epoch, which does not lead to the numbers of
    an undisturbed run; `subquad.sweep.slurm.job` does it at the last whole epoch.
    """
    if TorchElasticEnvironment.detect() or not SLURMEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)]
