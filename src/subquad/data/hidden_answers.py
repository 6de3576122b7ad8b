"""Batches of generated rows in which some tokens are answers: hidden from the model, and predicted by it."""

from collections.abc import Callable

import numpy as np
import torch
from torch.utils.data import Dataset

from subquad.data.ragged import Ragged
from subquad.data.split_data import padded
from subquad.specs import UNMASKED, MaskedBatch

MASK = 1
"""The token that stands in place of an answer; 0 is padding."""


class HiddenAnswers(Dataset[MaskedBatch]):
    """Turns lists of indices into batches. `answers` maps a row of tokens [n] to bool [n], True at its answers."""

    def __init__(self, rows: Ragged, answers: Callable[[np.ndarray], np.ndarray]) -> None:
        self.rows, self.answers = rows, answers

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> MaskedBatch:
        rows = [self.rows[i].astype(np.int64) for i in indices]
        hidden = [self.answers(row) for row in rows]
        longest = max(map(len, rows))
        inputs, valid = padded([np.where(at, MASK, row) for at, row in zip(hidden, rows, strict=True)], longest)
        targets = np.full((len(rows), longest), UNMASKED)
        for place, at, row in zip(targets, hidden, rows, strict=True):
            place[: len(row)][at] = row[at]
        return MaskedBatch(inputs, valid, torch.from_numpy(targets))
