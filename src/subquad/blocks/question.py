"""From the tokens of a question to vectors of the model's width."""

from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from subquad.blocks.albert import open_albert
from subquad.errors import UserError
from subquad.specs import VQASpec

WORD_WIDTH = 300
"""Numbers of a word vector, as GloVe's."""


class WordLSTM(nn.Module):
    """Word vectors, learned or learned on from given ones, and one LSTM over them (Yu et al. 2019)."""

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

    def forward(self, ids: Int[Tensor, "b m"], valid: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b m d"]:
        """What comes behind a token does not change its output, so padding on the right needs no care."""
        return self.lstm(self.embed(ids))[0]


class TunedALBERT(nn.Module):
    """The ALBERT of a folder, trained with the rest, and a linear map."""

    def __init__(self, folder: str, dim: int) -> None:
        super().__init__()
        self.albert = open_albert(Path(folder)).train()
        self.map = nn.Linear(self.albert.config.hidden_size, dim)

    def forward(self, ids: Int[Tensor, "b m"], valid: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b m d"]:
        mask = torch.ones_like(ids) if valid is None else valid.long()
        return self.map(self.albert(input_ids=ids, attention_mask=mask).last_hidden_state)


class TokenFeatures(nn.Module):
    """A linear map of features that were made before."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, dim)

    def forward(self, features: Float[Tensor, "b m e"], valid: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b m d"]:
        return self.map(features)


def question_encoder(spec: VQASpec, dim: int) -> nn.Module:
    """What the data ask for; called with tokens and with which of them are real."""
    if spec.text_dim is not None:
        return TokenFeatures(spec.text_dim, dim)
    if spec.albert is not None:
        return TunedALBERT(spec.albert, dim)
    if spec.vocab is not None:
        return WordLSTM(spec.vocab, dim, spec.word_vectors)
    raise UserError("The questions have neither features nor a vocabulary, so there is nothing to read.")
