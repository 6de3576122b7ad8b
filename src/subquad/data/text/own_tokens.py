"""The user's own labelled sequences of token ids: proteins, events, anything that is no text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from subquad.data import ragged
from subquad.data.ragged import Ragged
from subquad.data.text.own_sequences import OwnSequences
from subquad.data.text.own_tables import Part
from subquad.specs import DataSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

_LARGEST = 2**31 - 1


class OwnTokens(OwnSequences):
    """Sequences of whole numbers from 1; 0 is padding.

    ids: the column of lists of ids; null: one that is named tokens, ids, ...
    vocab: ids are smaller than it; null: one more than the largest of all splits.
    max_len: longer sequences are truncated; null: the longest of all splits.

    `rows` are arguments of `OwnSequences`, whose files are parquet or JSON lines, or folders with tokens.npy [N,
    longest], labels.npy [N] and, unless rows are padded by 0, lengths.npy [N].
    """

    task = "tokens/custom"
    reading_of_further = (*OwnSequences.reading_of_further, "ids")
    names = ("tokens", "ids", "input_ids", "sequence")

    def __init__(
        self, *, root: str, ids: str | None = None, vocab: Count | None = None, max_len: Count | None = None,
        **rows: Any,
    ) -> None:  # fmt: skip
        super().__init__(root=root, **rows)
        self.ids, self.vocab, self.max_len = ids, vocab, max_len

    @property
    def spec(self) -> DataSpec:
        largest = self._facts["largest"]
        if self.vocab is not None and self.vocab <= largest:
            raise UserError(f"data.vocab={self.vocab} is too small for the id {largest}; choose {largest + 1} or more.")
        return DataSpec(max_len=self._facts["longest"], vocab=self.vocab or largest + 1, classes=self.classes)

    @property
    def reading(self) -> tuple[Any, ...]:
        return self.ids, self.max_len

    def contents(self, part: Part, label: str) -> list[np.ndarray]:
        column = part.column(self.ids, self.names, "ids")
        rows = []
        for number, row in enumerate(part.table.with_format("numpy")[column], 1):
            values, where = np.asarray(row), f"{part.place}, row {number}, column {column}"
            if values.ndim != 1 or not len(values) or not np.issubdtype(values.dtype, np.integer):
                raise UserError(f"{where} is no list of whole numbers; correct or delete it.")
            if wrong := np.flatnonzero((values < 1) | (values > _LARGEST)).tolist():
                remedy = "correct it" if values.min() < 0 or values.max() > _LARGEST else "add 1 to all ids"
                raise UserError(
                    f"{where} has the id {values[wrong[0]]} at position {wrong[0] + 1}; ids are from 1, because 0 is "
                    f"padding, to {_LARGEST}: {remedy}."
                )
            rows.append(values.astype(np.uint32))
        return rows

    def tokens(self, contents: Sequence[Any], targets: np.ndarray, train: np.ndarray) -> tuple[Ragged, dict[str, Any]]:
        rows = ragged.lay_out([row[: self.max_len] for row in contents], targets)
        return rows, {"largest": int(rows.values.max())}

    def further(self, contents: Sequence[Any], targets: np.ndarray, place: Path) -> Ragged:
        vocab = self.spec.vocab
        for number, row in enumerate(contents, 1):
            if row.max() >= vocab:
                raise UserError(
                    f"{place}, row {number} has the id {row.max()}, and the model knows ids below {vocab} (data.vocab)."
                )
        return ragged.lay_out([row[: self.max_len] for row in contents], targets)

    @staticmethod
    def write_synthetic(folder: Path) -> None:
        """Writes arrays of 60 sequences in two classes that follow from the most frequent id."""
        rng = np.random.default_rng(0)
        lengths, labels = rng.integers(5, 20, 60), np.arange(60) % 2
        tokens = np.where(rng.random((60, 20)) < 0.5, labels[:, None] + 1, rng.integers(1, 9, (60, 20)))
        for name, array in (("tokens", tokens), ("lengths", lengths), ("labels", labels)):
            np.save(folder / f"{name}.npy", array)
