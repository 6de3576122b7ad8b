"""Blocks of text with masked tokens, as in BERT and RoBERTa."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from subquad.data.batches import Rows
from subquad.data.text.tokenizer import Vocabulary
from subquad.specs import UNMASKED, MaskedBatch
from subquad.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class Masking:
    """The fraction `chosen` of the text tokens of a block is predicted; special tokens never are.

    Of the predicted tokens, the fraction `swapped` is replaced by random tokens of the vocabulary, the fraction `kept`
    is unchanged, and all others are replaced by the mask token.
    """

    chosen: float = 0.15
    swapped: float = 0.1
    kept: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.chosen <= 1 or min(self.swapped, self.kept) < 0 or self.swapped + self.kept > 1:
            raise UserError(
                "data.masked must lie above 0 and up to 1, data.swapped and data.kept must be at least 0 and together "
                f"at most 1; got {self.chosen}, {self.swapped} and {self.kept}."
            )


@dataclass(frozen=True, slots=True)
class Blocks:
    """A stream of tokens divided into rows of the token `start` and the next `max_len - 1` tokens."""

    tokens: np.ndarray
    max_len: int
    start: int

    def __len__(self) -> int:
        return -(-len(self.tokens) // (self.max_len - 1))

    def __getitem__(self, i: int) -> np.ndarray:
        step = self.max_len - 1
        return np.concatenate([[self.start], self.tokens[i * step : (i + 1) * step]]).astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: the number of tokens of each block."""
        lengths = np.full(len(self), self.max_len, np.int64)
        lengths[-1] = 1 + len(self.tokens) - (len(self) - 1) * (self.max_len - 1)
        return lengths


class MaskedBlocks(Dataset[MaskedBatch]):
    """Turns lists of indices into batches with masked tokens.

    In training, masks are seeded by the index of the batch and the position in the batch; in evaluation by the index of
    the block only.
    """

    def __init__(self, blocks: Blocks, vocabulary: Vocabulary, masking: Masking, seed: int, fixed_seed: int) -> None:
        self.blocks, self.masking, self.mask = blocks, masking, vocabulary.mask
        self.is_text = np.ones(vocabulary.size, bool)
        self.is_text[list(vocabulary.special)] = False
        self.text_ids = np.flatnonzero(self.is_text)
        self.seed, self.fixed_seed = seed, fixed_seed

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitems__(self, indices: list[int]) -> MaskedBatch:
        rows = [self.blocks[i] for i in indices]
        lengths = np.array([len(row) for row in rows])
        inputs = np.zeros((len(rows), lengths.max()), np.int64)
        target = np.full_like(inputs, UNMASKED)
        for number, (i, row) in enumerate(zip(indices, rows, strict=True)):
            seed = [self.fixed_seed, i]
            if isinstance(indices, Rows):
                seed = [self.seed, indices.place, indices.position(number)]
            inputs[number, : len(row)], target[number, : len(row)] = self.hide(row, np.random.default_rng(seed))
        valid = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])
        return MaskedBatch(torch.from_numpy(inputs), None if valid.all() else valid, torch.from_numpy(target))

    def hide(self, row: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The masked row and its target; the number of predicted tokens is the fraction `chosen` on average."""
        candidates = np.flatnonzero(self.is_text[row])
        chosen = rng.choice(candidates, int(self.masking.chosen * len(candidates) + rng.random()), replace=False)
        masked, target = row.copy(), np.full_like(row, UNMASKED)
        target[chosen] = row[chosen]
        kind = rng.random(len(chosen))
        hidden = chosen[kind >= self.masking.swapped + self.masking.kept]
        swapped = chosen[kind < self.masking.swapped]
        masked[hidden] = self.mask
        masked[swapped] = rng.choice(self.text_ids, len(swapped))
        return masked, target
