"""Random inputs for measurements that do not depend on the data."""

from typing import Any

import torch
from torch import Tensor, nn

from subquad.backbones.dual_encoder import DualEncoder
from subquad.backbones.language import LanguageModel
from subquad.specs import (
    UNMASKED,
    Batch,
    DataSpec,
    ImageBatch,
    ImageSpec,
    MaskedBatch,
    PairBatch,
    SequenceBatch,
    VQABatch,
    VQASpec,
)  # fmt: skip
from subquad.utils.errors import UserError


def random_inputs(spec: Any, batch: int = 1, device: torch.device | str = "cpu") -> tuple[Tensor | None, ...]:
    """Random inputs of a network built for `spec`, at full length and without padding; the same at every call.

    Tokens for a vocabulary, N(0, 1) for channels, images and features. Raises TypeError for a spec of another kind.
    """
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int, vocab: int) -> Tensor:
        return torch.randint(1, vocab, (batch, length), generator=generator).to(device)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator).to(device)

    match spec:
        case DataSpec(vocab=int(vocab)):
            return tokens(spec.max_len, vocab), None
        case DataSpec(channels=int(channels)):
            return numbers(spec.max_len, channels), None
        case ImageSpec():
            return (numbers(spec.channels, spec.side, spec.side),)
        case VQASpec(vocab=int(vocab)):
            return numbers(spec.image_len, spec.image_dim), None, tokens(spec.text_len, vocab), None
        case VQASpec(text_dim=int(width)):
            return numbers(spec.image_len, spec.image_dim), None, numbers(spec.text_len, width), None
    raise TypeError(f"There are no random inputs for {type(spec).__name__}.")


def network_inputs(
    network: nn.Module, spec: Any, batch: int = 1, device: torch.device | str = "cpu"
) -> tuple[Tensor | None, ...]:
    """`random_inputs`, twice for a network that reads pairs.

    Raises UserError for a network whose output size depends on the data.
    """
    if isinstance(network, LanguageModel):
        raise UserError(
            "The number of tokens that a masked language model predicts depends on the data; choose a classification "
            "task, such as task=lra/text."
        )
    inputs = random_inputs(spec, batch, device)
    return inputs * 2 if isinstance(network, DualEncoder) else inputs


HIDDEN = 0.15
"""Share of the tokens that masked text hides, as published."""


def random_batch(network: nn.Module, spec: Any, rows: int) -> Batch:
    """A training batch at full length and without padding: `random_inputs` with random targets."""
    generator = torch.Generator().manual_seed(1)

    def target(spec: Any) -> Tensor:
        if spec.classes is None:
            return torch.randn(rows, generator=generator)
        return torch.randint(0, spec.classes, (rows,), generator=generator)

    inputs: Any = random_inputs(spec, rows)
    if isinstance(network, LanguageModel):
        tokens, _ = inputs
        hidden = torch.randperm(tokens.numel(), generator=generator)[: round(HIDDEN * tokens.numel())]
        places = torch.stack([hidden // tokens.shape[1], hidden % tokens.shape[1]], 1)
        original = torch.full_like(tokens, UNMASKED)
        original[places.unbind(1)] = tokens[places.unbind(1)]
        return MaskedBatch(tokens, None, original, places)
    if isinstance(network, DualEncoder):
        return PairBatch(*(inputs * 2), target(spec))  # type: ignore[call-arg]
    if isinstance(spec, ImageSpec):
        return ImageBatch(*inputs, target(spec))  # type: ignore[call-arg]
    if isinstance(spec, VQASpec):
        scores = torch.nn.functional.one_hot(target(spec), spec.classes).float()
        return VQABatch(*inputs, scores, torch.full((rows,), 2), scores)  # type: ignore[call-arg]
    return SequenceBatch(*inputs, target(spec))  # type: ignore[call-arg]
