"""Encoders that map the tokens of a question to vectors of the model's width."""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.blocks.albert import open_albert
from subquad.specs import Context, ContextMask, VQASpec
from subquad.utils.errors import UserError

WORD_WIDTH = 300
"""Width of a word vector, as in GloVe."""


class WordLSTM(nn.Module):
    """Word vectors, initialised randomly or from `vectors`, and one LSTM (Yu et al. 2019)."""

    def __init__(self, vocab: int, dim: int, vectors: Tensor | None) -> None:
        super().__init__()
        if vectors is not None and vectors.shape != (vocab, WORD_WIDTH):
            raise UserError(
                f"Word vectors of shape {list(vectors.shape)} do not fit {vocab} words of {WORD_WIDTH} numbers."
            )
        self.embed = nn.Embedding(vocab, WORD_WIDTH)
        if vectors is not None:
            self.embed.weight.data.copy_(vectors)
        self.lstm = nn.LSTM(WORD_WIDTH, dim, batch_first=True)

    def forward(self, ids: Int[Tensor, "b m"], valid: ContextMask) -> Context:
        """Needs no mask: padding on the right does not change the outputs of real tokens."""
        return self.lstm(self.embed(ids))[0]


class TunedALBERT(nn.Module):
    """ALBERT from a folder, fine-tuned with the model, and a linear map."""

    def __init__(self, folder: str, dim: int) -> None:
        super().__init__()
        self.albert = open_albert(Path(folder)).train()
        self.map = nn.Linear(self.albert.config.hidden_size, dim)

    def forward(self, ids: Int[Tensor, "b m"], valid: ContextMask) -> Context:
        mask = torch.ones_like(ids) if valid is None else valid.long()
        return self.map(self.albert(input_ids=ids, attention_mask=mask).last_hidden_state)


class TokenFeatures(nn.Module):
    """A linear map of precomputed features."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, dim)

    def forward(self, features: Float[Tensor, "b m e"], valid: ContextMask) -> Context:
        return self.map(features)


def question_encoder(spec: VQASpec, dim: int) -> nn.Module:
    """The encoder for these data; its `forward` takes tokens or features, and the mask of real tokens."""
    if spec.text_dim is not None:
        return TokenFeatures(spec.text_dim, dim)
    if spec.albert is not None:
        return TunedALBERT(spec.albert, dim)
    if spec.vocab is not None:
        return WordLSTM(spec.vocab, dim, spec.word_vectors)
    raise UserError("The questions have neither features nor a vocabulary, so there is nothing to read.")
