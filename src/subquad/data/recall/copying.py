"""Selective copying for encoders: a few tokens among blanks, to be repeated in their order; generated.

A row has `length` places. `tokens` of them, at random, hold a token of `vocab`, the others the same blank. Behind them
stand `tokens` hidden answers: the tokens in their order. The first answer asks for the first token wherever it is, so a
mechanism has to find how many tokens stand before each one, and to pick by that number.

Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", https://arxiv.org/abs/2403.17844,
Appendix B (selective copying). There the task is causal and the next token is predicted; here an encoder sees the whole
row, and the answers are masked.
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

BLANK = MASK + 1
"""Token ids: 0 is padding, then the mask, the blank, the tokens."""


class Copying(GeneratedRows):
    """Rows of `length` places, of which `tokens` are not blank, and the answers behind them.

    Raises UserError for impossible settings.

    Args:
        length: places in front of the answers.
        tokens: places that are not blank, and answers.
        vocab: different tokens.
    """

    def __init__(self, *, length: Count, tokens: Count, vocab: Count, **generated: Any) -> None:
        super().__init__(**generated)
        if tokens > length or vocab < 2:
            raise UserError(
                "Selective copying needs data.tokens <= data.length and a data.vocab of at least 2; got "
                f"{tokens}, {length} and {vocab}."
            )
        self.length, self.tokens, self.vocab = length, tokens, vocab

    @property
    def spec(self) -> TextSpec:
        return TextSpec(max_len=self.length + self.tokens, vocab=BLANK + 1 + self.vocab, tokenizer="0")

    def load(self) -> tuple[Mapping[str, Ragged], str]:
        """Generates the rows; raises UserError if there are not enough different ones."""
        return different(self._rows(np.random.default_rng(self.data_seed)), self.sizes)

    def answers(self, row: np.ndarray) -> np.ndarray:
        """True behind the places."""
        return np.arange(len(row)) >= self.length

    def baselines(self) -> dict[str, float]:
        """Accuracy of any token, and of the most frequent token of the row."""
        return {"any token": 1 / self.vocab, "most frequent token of the row": self.most_frequent_answer()}

    def _rows(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for _ in itertools.count():
            copied = rng.integers(self.vocab, size=self.tokens) + BLANK + 1
            row = np.full(self.length + self.tokens, BLANK, np.int64)
            row[np.sort(rng.permutation(self.length)[: self.tokens])] = copied
            row[self.length :] = copied
            yield row
