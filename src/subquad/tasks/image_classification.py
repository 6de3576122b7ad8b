"""Classification of images."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from subquad.backbones.patches import on_images
from subquad.specs import ImageSpec
from subquad.tasks.supervised import BackboneFactory, OptimizerFactory, SchedulerFactory, Supervised
from subquad.utils.setting_types import BelowOne, Count


class ImageClassification(Supervised):
    """Trains with cross entropy, with class probabilities as targets for mixup and CutMix; the metric is accuracy.

    With more than five classes `val/top5_accuracy` and `test/top5_accuracy` are logged too. `label_smoothing` applies
    to training only. `eval_mode` trains the network in evaluation mode, without dropout and stochastic depth
    (EcoFormer's fine-tuning). `patch` is the side of the patches in pixels, for encoders of sequences. Biases, other
    vectors and the parameters of the model's `no_weight_decay` (positions, class token) have no weight decay, as in the
    released code; S4 and S5 have their own rates and weight decay.
    """

    metric_name = "accuracy"

    def __init__(
        self, spec: ImageSpec, backbone: BackboneFactory, optimizer: OptimizerFactory, scheduler: SchedulerFactory,
        compile_model: bool | str = False, label_smoothing: BelowOne = 0.0, eval_mode: bool = False, patch: Count = 4,
    ) -> None:  # fmt: skip
        super().__init__(spec, on_images(backbone, patch), optimizer, scheduler, compile_model)
        self.label_smoothing, self.eval_mode = label_smoothing, eval_mode

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        if self.eval_mode:
            self.network.eval()

    def new_metric(self, spec: ImageSpec) -> MetricCollection:
        tops = {"accuracy": 1} | ({"top5_accuracy": 5} if spec.classes > 5 else {})
        accuracies: dict[str, Any] = {
            name: MulticlassAccuracy(spec.classes, top_k=k, average="micro", validate_args=False)
            for name, k in tops.items()
        }
        return MetricCollection(accuracies, compute_groups=False)

    def log_metric(self, split: str, metric: Any) -> None:
        """Logs the accuracies of a split and resets the metric."""
        self.log_dict({f"{split}/{name}": value for name, value in metric.compute().items()})
        metric.reset()

    def loss(
        self, outputs: Float[Tensor, "b classes"], target: Int[Tensor, " b"] | Float[Tensor, "b classes"]
    ) -> Float[Tensor, ""]:
        return F.cross_entropy(outputs, target, label_smoothing=self.label_smoothing if self.training else 0.0)

    def predictions(self, outputs: Float[Tensor, "b classes"]) -> Float[Tensor, "b classes"]:
        """The logits, unchanged: top-k accuracy ranks them."""
        return outputs

    def optimized(self) -> Any:
        """The groups of a network with `Tuned` modules; else two, without and with weight decay, as timm divides."""
        if len(groups := super().optimized()) > 1:
            return groups
        from timm.optim import param_groups_weight_decay

        model: Any = getattr(self.network, "model", self.network)
        excluded = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
        groups = param_groups_weight_decay(model, weight_decay=1.0, no_weight_decay_list=excluded)
        for group in groups:
            if group["weight_decay"]:
                del group["weight_decay"]  # so that the optimiser's own value applies
        return groups
