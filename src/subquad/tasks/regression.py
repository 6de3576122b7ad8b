"""Regression of one real number per sequence."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torchmetrics import MeanSquaredError, Metric

from subquad.specs import DataSpec
from subquad.tasks.supervised import Supervised


class Regression(Supervised):
    """Trains with the mean squared error of unscaled targets; the metric is the RMSE of a split."""

    metric_name = "rmse"

    def new_metric(self, spec: DataSpec) -> Metric:
        return MeanSquaredError(squared=False)

    def loss(self, outputs: Float[Tensor, "b 1"], target: Float[Tensor, " b"]) -> Float[Tensor, ""]:
        return F.mse_loss(self.predictions(outputs), target)

    def predictions(self, outputs: Float[Tensor, "b 1"]) -> Float[Tensor, " b"]:
        return outputs.squeeze(-1)
