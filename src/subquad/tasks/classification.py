"""Classification of sequences."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from subquad.specs import DataSpec
from subquad.tasks.supervised import Supervised
from subquad.utils.errors import UserError


class Classification(Supervised):
    """Trains with cross entropy; the metric is accuracy, the fraction of correctly labelled sequences."""

    metric_name = "accuracy"

    def new_metric(self, spec: DataSpec) -> Metric:
        if spec.classes is None:
            raise UserError("These data have real-valued targets, not classes; choose a task of the group tser.")
        return MulticlassAccuracy(spec.classes, average="micro", validate_args=False)

    def loss(self, outputs: Float[Tensor, "b classes"], target: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        return F.cross_entropy(outputs, target)

    def predictions(self, outputs: Float[Tensor, "b classes"]) -> Int[Tensor, " b"]:
        return outputs.argmax(-1)
