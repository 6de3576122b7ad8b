"""Masked language modelling."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from subquad.backbones.language import LanguageModel
from subquad.ops.cross_entropy import summed_cross_entropy
from subquad.specs import MaskedBatch, TextSpec
from subquad.tasks.supervised import BackboneFactory, OptimizerFactory, SchedulerFactory, Supervised
from subquad.utils.errors import UserError


class Perplexity(Metric):
    """exp of the mean negative log-likelihood of all tokens of a split; independent of the division into batches."""

    full_state_update = False
    higher_is_better = False
    nll: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nll", torch.zeros((), dtype=torch.float64), "sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), "sum")

    def update(self, logits: Float[Tensor, "m vocab"], target: Int[Tensor, " m"]) -> None:
        """Adds the tokens of one batch."""
        self.nll += summed_cross_entropy(logits, target)
        self.tokens += len(target)

    def compute(self) -> Tensor:
        """The perplexity of all added tokens."""
        return (self.nll / self.tokens).exp()


class MaskedLanguageModel(Supervised):
    """Trains with the cross entropy of masked tokens; `val/perplexity` is its exponential over a whole split.

    `val/accuracy` is the fraction of correctly predicted masked tokens, `val/loss` the natural logarithm of the
    perplexity.
    """

    metric_name = "perplexity"

    def __init__(
        self, spec: TextSpec, backbone: BackboneFactory, optimizer: OptimizerFactory, scheduler: SchedulerFactory,
        compile_model: bool | str = False,
    ) -> None:  # fmt: skip
        super().__init__(spec, backbone, optimizer, scheduler, compile_model)
        if not isinstance(self.network, LanguageModel):
            raise UserError(
                f"Masked language modelling needs one output per token, but {type(self.network).__name__} has one "
                "per row; choose backbone=language_model."
            )

    def new_metric(self, spec: TextSpec) -> MetricCollection:
        assert spec.vocab is not None
        accuracy = MulticlassAccuracy(spec.vocab, average="micro", validate_args=False)
        return MetricCollection({"perplexity": Perplexity(), "accuracy": accuracy}, compute_groups=False)

    def log_metric(self, split: str, metric: Any) -> None:
        """Logs the perplexity and the accuracy of a split, in validation also the loss, and resets the metric."""
        scores = metric.compute()
        self.log_dict({f"{split}/{name}": score for name, score in scores.items()})
        if split == "val":
            self.log("val/loss", scores["perplexity"].log())
        metric.reset()

    def targets(self, batch: MaskedBatch) -> Int[Tensor, " m"]:
        """The original tokens at the masked positions."""
        assert batch.places is not None
        return batch.target[batch.places.unbind(1)]

    def loss(self, outputs: Float[Tensor, "m vocab"], target: Int[Tensor, " m"]) -> Float[Tensor, ""]:
        """The mean over the masked tokens; 0 where a batch has none."""
        return summed_cross_entropy(outputs, target) / max(1, len(target))

    def predictions(self, outputs: Float[Tensor, "m vocab"]) -> Float[Tensor, "m vocab"]:
        """The logits, unchanged: perplexity needs all of them."""
        return outputs

    def validation_step(self, batch: MaskedBatch) -> None:  # type: ignore[override]
        self.val_metric.update(self(batch), self.targets(batch))
