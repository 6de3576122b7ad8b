"""Blocks of text with hidden tokens, as BERT and RoBERTa are trained on them."""

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
    """Of the text tokens of a block the fraction `chosen` is to be predicted; special tokens never are.

    Of those, the fraction `swapped` becomes a random token of the vocabulary, `kept` stays, and all others are hidden.
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
    """A stream of tokens cut into rows: `start`, then the next `max_len - 1` tokens."""

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
        """int64 [N]: tokens of each block."""
        found = np.full(len(self), self.max_len, np.int64)
        found[-1] = 1 + len(self.tokens) - (len(self) - 1) * (self.max_len - 1)
        return found


class MaskedBlocks(Dataset[MaskedBatch]):
    """Turns lists of indices into batches with hidden tokens.

    The masks of a block in training hang on its place in its batch and on that of the batch among all batches; those of
    evaluation on the block alone.
    """

    def __init__(self, blocks: Blocks, vocabulary: Vocabulary, masking: Masking, seed: int, fixed_seed: int) -> None:
        self.blocks, self.masking, self.mask = blocks, masking, vocabulary.mask
        self.is_text = np.ones(vocabulary.size, bool)
        self.is_text[list(vocabulary.special)] = False
        self.words = np.flatnonzero(self.is_text)
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
        """The row as the model sees it, and its target; as many tokens are chosen as the fraction says on average."""
        places = np.flatnonzero(self.is_text[row])
        chosen = rng.choice(places, int(self.masking.chosen * len(places) + rng.random()), replace=False)
        seen, target = row.copy(), np.full_like(row, UNMASKED)
        target[chosen] = row[chosen]
        kind = rng.random(len(chosen))
        hidden = chosen[kind >= self.masking.swapped + self.masking.kept]
        swapped = chosen[kind < self.masking.swapped]
        seen[hidden] = self.mask
        seen[swapped] = rng.choice(self.words, len(swapped))
        return seen, target
