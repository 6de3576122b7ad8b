"""Compression: random tokens, all of which are to be read again from one vector; generated.

A row has `length` random tokens and a last one that is the same in every row. backbone=autoencoder predicts each of the
tokens from the vector of the last one alone, so a mechanism has to bring them all there, each with its place.

Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", https://arxiv.org/abs/2403.17844,
Appendix B (compression). There a causal model writes into the last of the random tokens.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from subquad.data.hidden_answers import MASK, GeneratedRows, different
from subquad.data.ragged import Ragged
from subquad.specs import TextSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

LAST = MASK + 1
"""Token ids: 0 is padding, then the mask, which no row has, the last token, the tokens."""


class Compression(GeneratedRows):
    """Rows of `length` tokens and a last one; the answers are all tokens but the last, and are shown.

    Raises UserError for impossible settings.

    Args:
        length: tokens of a row without the last one.
        vocab: different tokens.
    """

    hidden = False

    def __init__(self, *, length: Count, vocab: Count, **generated: Any) -> None:
        super().__init__(**generated)
        if vocab < 2:
            raise UserError(f"Compression needs a data.vocab of at least 2; got {vocab}.")
        self.length, self.vocab = length, vocab

    @property
    def spec(self) -> TextSpec:
        return TextSpec(max_len=self.length + 1, vocab=LAST + 1 + self.vocab, tokenizer="0")

    def load(self) -> tuple[Mapping[str, Ragged], str]:
        """Generates the rows; raises UserError if there are not enough different ones."""
        return different(self._rows(np.random.default_rng(self.data_seed)), self.sizes)

    def answers(self, row: np.ndarray) -> np.ndarray:
        """True at all tokens but the last."""
        return np.arange(len(row)) < self.length

    def baselines(self) -> dict[str, float]:
        """Accuracy of any token, and of the most frequent token of the row."""
        return {"any token": 1 / self.vocab, "most frequent token of the row": self.most_frequent_answer()}

    def _rows(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for _ in itertools.count():
            yield np.append(rng.integers(self.vocab, size=self.length) + LAST + 1, LAST)
