"""Strategies for distributed training: data-parallel (DDP) and fully sharded (FSDP2)."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.trainer.states import TrainerFn


class SharedBatches(DDPStrategy):
    """DDP without broadcasting buffers at every batch, because they are equal in all processes by construction."""

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert self.model is not None
        self.model.broadcast_buffers = False  # type: ignore[assignment]


class FullySharded(ModelParallelStrategy):
    """FSDP2 over all processes. Checkpoints are single files in the format of a run on one process.

    The parameters of a layer are gathered while it is computed, those outside of layers for a whole step.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **settings)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            self.optimizers = []  # otherwise Lightning looks for their states in a checkpoint that holds only weights
        super().setup(trainer)
