"""Visual question answering."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from subquad.specs import VQABatch, VQASpec
from subquad.tasks.supervised import Supervised

_NAMES = ("yes_no", "number", "other")


class VQAAccuracy(Metric):
    """The official accuracy, a fraction: the mean score of the questions of one answer type, or of all if None.

    Scores are multiples of a tenth and are summed as integers, so that the sum is exact.
    """

    tenths: Tensor
    questions: Tensor

    def __init__(self, answer_type: int | None) -> None:
        super().__init__()
        self.answer_type = answer_type
        self.add_state("tenths", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("questions", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, " b"], answer_type: Int[Tensor, " b"]) -> None:
        """Adds the scores of the predicted answers, with the answer types of their questions."""
        # Multiplied by 0 and not selected: on a GPU, to count the selected ones would wait for the device.
        counted = torch.ones_like(answer_type) if self.answer_type is None else answer_type == self.answer_type
        self.tenths += ((10 * scores).round().long() * counted).sum()
        self.questions += counted.sum()

    def compute(self) -> Float[Tensor, ""]:
        """The mean score; NaN without questions."""
        return self.tenths / (10 * self.questions)


class VisualQuestionAnswering(Supervised):
    """Trains with binary cross entropy on the soft score of each answer; the metric is the official accuracy.

    The loss is summed over answers. Training minimises its sum over the questions of a batch, as in MCAN; logged losses
    are means over questions. Accuracy is logged for all questions and by answer type, such as `val/accuracy_yes_no`.
    The prediction is the answer with the largest output, scored against the answers of the ten annotators.
    """

    metric_name = "accuracy"

    def new_metric(self, spec: VQASpec) -> MetricCollection:
        accuracies: dict[str, Any] = {"accuracy": VQAAccuracy(None)}
        accuracies |= {f"accuracy_{name}": VQAAccuracy(kind) for kind, name in enumerate(_NAMES)}
        return MetricCollection(accuracies, compute_groups=False)

    def loss(self, outputs: Float[Tensor, "b classes"], target: Float[Tensor, "b classes"]) -> Float[Tensor, ""]:
        return F.binary_cross_entropy_with_logits(outputs, target, reduction="sum") / len(target)

    def predictions(self, outputs: Float[Tensor, "b classes"]) -> Int[Tensor, " b"]:
        return outputs.argmax(-1)

    def objective(self, mean: Tensor, weight: Tensor | float) -> Tensor:
        """The sum over the questions of a batch."""
        return mean * weight

    def validation_step(self, batch: VQABatch) -> None:  # type: ignore[override]
        outputs = self(batch)
        self._count(self.val_metric, outputs, batch)
        self.val_loss.update(self.loss(outputs, batch.target), len(batch))

    def count_test(self, outputs: Tensor, batch: VQABatch) -> None:
        self._count(self.test_metric, outputs, batch)

    def log_metric(self, split: str, metric: Any) -> None:
        """Logs the accuracy of all questions and of every answer type that occurs, and resets the metric."""
        self.log_dict({f"{split}/{name}": value for name, value in metric.compute().items() if not value.isnan()})
        metric.reset()

    def _count(self, metric: Metric | MetricCollection, outputs: Tensor, batch: VQABatch) -> None:
        answers = self.predictions(outputs)
        metric.update(batch.scores.gather(1, answers[:, None]).squeeze(1), batch.answer_type)
