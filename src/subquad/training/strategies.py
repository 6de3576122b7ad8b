"""How several processes train one model: each with all of it, or each with a share of its parameters."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.trainer.states import TrainerFn


class SharedBatches(DDPStrategy):
    """DDP that does not send buffers around at every batch: here they are equal by construction."""

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert self.model is not None
        self.model.broadcast_buffers = False  # type: ignore[assignment]


class FullySharded(ModelParallelStrategy):
    """FSDP2 over all processes. Checkpoints are whole, in one file, and like those of one process.

    A layer is gathered while it is computed, what lies outside of the layers for the length of a step.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **settings)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            self.optimizers = []  # Lightning would look for their states in a checkpoint of weights
        super().setup(trainer)
