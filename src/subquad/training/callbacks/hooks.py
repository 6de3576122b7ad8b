"""Skips the batch hooks that callbacks do not define."""

import pytorch_lightning as pl

_BATCH_HOOKS = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end",
    "on_test_batch_start", "on_test_batch_end",
)  # fmt: skip


class SkipEmptyHooks(pl.Callback):
    """Sets each batch hook that a callback does not define to None, so that Lightning does not call it.

    Lightning would otherwise call its own empty hook inside a profiler context, which takes a fifth of a millisecond a
    step for the callbacks of a run.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            for name in _BATCH_HOOKS:
                if getattr(type(callback), name) is getattr(pl.Callback, name):
                    setattr(callback, name, None)
