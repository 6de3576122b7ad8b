"""Generated rows in which some tokens are answers: hidden from the model, and predicted by it."""

import abc
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from subquad.data.ragged import Ragged, lay_out
from subquad.data.split_data import SplitData, padded
from subquad.specs import UNMASKED, MaskedBatch
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Seed, Sizes

MASK = 1
"""The token that stands in place of an answer; 0 is padding."""
SPLITS = ("train", "val", "test")
_SYNTHETIC_SIZES = (64, 16, 16)


class GeneratedRows(SplitData):
    """Rows of tokens drawn from a seed, with hidden answers. No row of val or test occurs twice.

    `batching` are arguments of `SplitData`.

    Args:
        sizes: rows of train, val and test.
        data_seed: seed of the rows, independent of the training seed.
        synthetic: a few rows.
    """

    def __init__(self, *, sizes: Sizes, data_seed: Seed = 0, synthetic: bool = False, **batching: Any) -> None:
        super().__init__(**batching)
        self.sizes = dict(zip(SPLITS, _SYNTHETIC_SIZES if synthetic else sizes, strict=True))
        self.data_seed = data_seed

    @abc.abstractmethod
    def answers(self, row: np.ndarray) -> np.ndarray:
        """True at the answers of a row, bool [n]."""

    hidden = True
    """Whether the model sees MASK in place of an answer, or the answer itself."""

    def batched(self, split: str) -> Dataset[MaskedBatch]:
        """Batches of rows with their answers."""
        return Answers(self.splits[split], self.answers, self.hidden)

    def most_frequent_answer(self) -> float:
        """Accuracy on the test rows of one token for all answers of a row, the one that is right most often."""
        test = self.splits["test"]
        answers = (row[self.answers(row)] for row in map(test.__getitem__, range(len(test))))
        return float(np.mean([np.bincount(asked).max() / len(asked) for asked in answers]))


def different(rows: Iterator[np.ndarray], sizes: Mapping[str, int]) -> tuple[Mapping[str, Ragged], str]:
    """Splits of rows without repetition, in their order, and the fingerprint; raises UserError if there are too few."""
    wanted = sum(sizes.values())
    found: dict[bytes, np.ndarray] = {}
    for row, _ in zip(rows, range(2 * wanted), strict=False):
        found[row.tobytes()] = row
        if len(found) == wanted:
            break
    else:
        raise UserError(f"There are fewer than {wanted} different rows; lower data.sizes, or allow longer rows.")
    ends = dict(zip(sizes, np.cumsum(list(sizes.values())), strict=True))
    splits = {name: [*found.values()][end - sizes[name] : end] for name, end in ends.items()}
    fingerprint = hashlib.sha256(b"".join(found)).hexdigest()[:16]
    return {name: lay_out(split, np.zeros(len(split), np.int64)) for name, split in splits.items()}, fingerprint


class Answers(Dataset[MaskedBatch]):
    """Turns lists of indices into batches. `answers` maps a row of tokens [n] to bool [n], True at its answers.

    hidden: the inputs have MASK in place of the answers.
    """

    def __init__(self, rows: Ragged, answers: Callable[[np.ndarray], np.ndarray], hidden: bool) -> None:
        self.rows, self.answers, self.hidden = rows, answers, hidden

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> MaskedBatch:
        rows = [self.rows[i].astype(np.int64) for i in indices]
        answers = [self.answers(row) for row in rows]
        longest = max(map(len, rows))
        shown = [np.where(at, MASK, row) for at, row in zip(answers, rows, strict=True)] if self.hidden else rows
        inputs, valid = padded(shown, longest)
        targets = np.full((len(rows), longest), UNMASKED)
        for place, at, row in zip(targets, answers, rows, strict=True):
            place[: len(row)][at] = row[at]
        return MaskedBatch(inputs, valid, torch.from_numpy(targets))
