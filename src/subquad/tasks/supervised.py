"""Supervised training: the base class of all tasks."""

import abc
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric, MetricCollection, SumMetric

from subquad.backbones.encoder import check_fits
from subquad.backbones.layerwise import shard
from subquad.blocks.parameter_groups import parameter_groups
from subquad.data.microbatches import Microbatch
from subquad.specs import Batch
from subquad.utils.compiling import compile_network
from subquad.utils.errors import UserError, first_line
from subquad.utils.setting_types import CheckedSettings

OptimizerFactory = Callable[[Any], Optimizer]
SchedulerFactory = Callable[..., LRScheduler]
BackboneFactory = Callable[..., nn.Module]


class MeanLoss(Metric):
    """The weighted mean of the losses of batches over all processes.

    Lightning's own mean is inexact where processes have batches of different sizes.
    """

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), "sum")
        self.add_state("weight", torch.tensor(0), "sum")

    def update(self, loss: Tensor, weight: int) -> None:
        """Adds the mean loss of a batch."""
        self.total += loss * weight
        self.weight += weight

    def compute(self) -> Tensor:
        """The mean of all added losses."""
        return self.total / self.weight


class Supervised(pl.LightningModule, CheckedSettings, abc.ABC):
    """Logs `train/loss`, `val/loss`, `val/<metric>` and `test/<metric>` once an epoch.

    The batch of an optimiser step may be divided among processes and into microbatches. Lightning averages gradients
    over both; the loss of each microbatch is weighted so that the result is the gradient of the mean over the batch.

    `compile_model` compiles the network (not this module) with torch.compile, in a mode of it if it is the name of one.
    """

    section = "task.module"

    metric_name: str
    """The name of the metric that tables show and checkpoints are selected by."""

    def __init__(
        self, spec: Any, backbone: BackboneFactory, optimizer: OptimizerFactory, scheduler: SchedulerFactory,
        compile_model: bool | str = False,
    ) -> None:  # fmt: skip
        super().__init__()
        check_fits(backbone, spec)
        try:
            self.network = backbone(spec=spec)
        except UserError:
            raise
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"The model cannot be built with these settings ({first_line(error)}); correct those of the attention "
                "and the backbone (sizes above 0), or choose a recipe made for this task."
            ) from error
        if compile_model:
            compile_network(self.network, compile_model)
        self.make_optimizer, self.make_scheduler = optimizer, scheduler
        self.train_loss, self.val_loss, self.not_finite = MeanLoss(), MeanLoss(), SumMetric(nan_strategy="disable")
        self.val_metric, self.test_metric = self.new_metric(spec), self.new_metric(spec)

    @abc.abstractmethod
    def new_metric(self, spec: Any) -> Metric | MetricCollection:
        """A new metric object for one split."""

    @abc.abstractmethod
    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The mean loss of outputs `[b, outputs]`; the mean has as many terms as the batch's `weight`."""

    def targets(self, batch: Any) -> Tensor:
        """The targets of the loss and of the metric, as many as there are outputs."""
        target: Tensor = batch.target
        return target

    def objective(self, mean: Tensor, weight: Tensor | float) -> Tensor:
        """The minimised function of the mean loss of a batch and its weight; by default the mean."""
        return mean

    @abc.abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """The predictions that the metric compares with the target."""

    def forward(self, batch: Batch) -> Tensor:
        """The raw outputs of the network, `[b, outputs]`."""
        return self.network(*batch.network_inputs)

    def training_step(self, batch: Batch | Microbatch) -> Tensor:
        rows = batch.batch if isinstance(batch, Microbatch) else batch
        loss = self.loss(self(rows), self.targets(rows))
        self.train_loss.update(loss.detach(), batch.weight)
        if not isinstance(batch, Microbatch):
            return self.objective(loss, batch.weight)
        if batch.first:
            # Filled on the device: to copy a number to a GPU would wait for it.
            share = torch.full((), float(batch.share), device=loss.device)
            self.step_weight = self._over_processes(share).clamp(min=1)
        averaged = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return self.objective(loss * (averaged * batch.weight / self.step_weight), self.step_weight)

    def on_train_epoch_start(self) -> None:
        # A resumed run has lost the losses of an earlier epoch without validation, so no run counts them.
        self.train_loss.reset()

    def validation_step(self, batch: Batch) -> None:
        outputs = self(batch)
        self.val_metric.update(self.predictions(outputs), self.targets(batch))
        self.val_loss.update(self.loss(outputs, self.targets(batch)), batch.weight)

    def on_validation_epoch_end(self) -> None:
        self.log_metric("val", self.val_metric)
        self._log_loss("val", self.val_loss)
        # Logged here because Lightning would log it after the checkpoint, and a run killed in between would lose it.
        self._log_loss("train", self.train_loss)

    def _log_loss(self, split: str, loss: "MeanLoss") -> None:
        if loss.update_called:
            self.log(f"{split}/loss", loss.compute())
            loss.reset()

    def test_step(self, batch: Batch) -> None:
        outputs = self(batch)
        # An argmax would take NaN for a class. The sum of a row's outputs is finite only if all are.
        self.not_finite.update((~outputs.sum(-1, dtype=torch.float32).isfinite()).sum())
        self.count_test(outputs, batch)

    def count_test(self, outputs: Tensor, batch: Any) -> None:
        """Adds the outputs of a batch to the test metric."""
        self.test_metric.update(self.predictions(outputs), self.targets(batch))

    def on_test_epoch_end(self) -> None:
        count = int(self.not_finite.compute())
        self.not_finite.reset()
        if count:
            raise UserError(
                f"{count} outputs of the model on the test rows are infinite or NaN, so there is no score; train with "
                "trainer.precision=32-true or bf16-mixed, or test on shorter rows."
            )
        self.log_metric("test", self.test_metric)

    def log_metric(self, split: str, metric: Any) -> None:
        """Logs the metric of a split and resets it."""
        self.log(f"{split}/{self.metric_name}", metric.compute())
        metric.reset()

    def _over_processes(self, value: Tensor) -> Tensor:
        """The sum over the processes that train together."""
        return self.trainer.strategy.reduce(value.clone(), reduce_op="sum") if self.trainer.world_size > 1 else value

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the metrics of the saved weights; `check_best` compares them with the best score of the run."""
        checkpoint["metrics"] = {name: float(value) for name, value in self.trainer.callback_metrics.items()}

    def configure_model(self) -> None:
        """Shards the parameters over processes if the strategy has a device mesh (FSDP)."""
        if self.device_mesh is not None:
            half = torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None
            shard(self.network, self.device_mesh["data_parallel"], half)

    def optimized(self) -> Any:
        """The parameters for the optimiser, in groups where parts of the network have settings of their own."""
        return parameter_groups(self.network)

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        try:
            optimizer = self.make_optimizer(self.optimized())
            scheduler = self.make_scheduler(optimizer, total_steps=steps)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"The optimiser or its schedule cannot be built ({error}); see optimizer= and scheduler=."
            ) from error
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: LRScheduler, metric: Any) -> None:
        scheduler.step()

    @property
    def parameter_count(self) -> int:
        """The number of trainable parameters; shared ones count once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)
