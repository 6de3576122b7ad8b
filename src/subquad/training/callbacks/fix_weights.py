"""Evaluates with fixed weights."""

from contextlib import ExitStack

import pytorch_lightning as pl

from subquad.utils.fixed_weights import fixed_weights


class FixWeights(pl.Callback):
    """Validates and tests inside `fixed_weights`, because only training steps change weights.

    A callback that exchanges the weights for an evaluation does so before its first and after its last batch.
    """

    def __init__(self) -> None:
        self.block = ExitStack()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.block.close()
        self.block.enter_context(fixed_weights())

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.block.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.block.close()

    on_test_start, on_test_end = on_validation_start, on_validation_end
