"""Multi-query associative recall for encoders: values looked up by their keys, generated.

A row of D pairs has 4 D tokens: D keys, each followed by its value; then the same keys in another order, each followed
by the mask token. All hidden values are predicted at once. The keys of a row differ, values may repeat. A model that
remembers less than the pairs cannot recall all of them.

Source: Arora et al. 2024, "Zoology", https://arxiv.org/abs/2312.04927, Section 3. There the task is causal: a query
comes some tokens after its pair, and its value is the next token. Here an encoder sees the whole row, so the answers
are hidden, and no filler tokens separate the queries.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from subquad.data.hidden_answers import MASK, GeneratedRows
from subquad.data.ragged import Ragged, lay_out
from subquad.specs import TextSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

FIRST_KEY = MASK + 1
"""Token ids: 0 is padding, then the mask, the keys, the values."""


class Recall(GeneratedRows):
    """Rows of `pairs` pairs out of `keys` keys and `values` values; those of val and test occur nowhere else.

    Raises UserError for impossible settings.

    Args:
        pairs: pairs of a row.
        keys: different keys.
        values: different values, at least 2.
        train_pairs: numbers of pairs of training rows, equally many rows of each; null: `pairs`.
        test_pairs: pairs of test rows; null: `pairs`. The model and the other splits do not depend on it, so that
            evaluate=[{test_pairs:4}] evaluates weights on shorter rows.
    """

    def __init__(
        self, *, pairs: Count, keys: Count, values: Count, train_pairs: Sequence[Count] | None = None,
        test_pairs: Count | None = None, **generated: Any,
    ) -> None:  # fmt: skip
        super().__init__(**generated)
        self.train_pairs = [pairs] if train_pairs is None else list(train_pairs)
        self.test_pairs = pairs if test_pairs is None else test_pairs
        every = [*self.train_pairs, self.test_pairs]
        if not self.train_pairs or not 1 <= min(every) <= max(every) <= pairs <= keys:
            raise UserError(
                "Recall needs 1 <= data.train_pairs, data.test_pairs <= data.pairs <= data.keys, because the keys of a "
                f"row differ; got {train_pairs}, {test_pairs}, {pairs} and {keys}."
            )
        if values < 2:
            raise UserError(f"Recall needs at least 2 data.values; got {values}.")
        self.pairs, self.keys, self.values = pairs, keys, values

    @property
    def spec(self) -> TextSpec:
        return TextSpec(max_len=4 * self.pairs, vocab=FIRST_KEY + self.keys + self.values, tokenizer="0")

    def load(self) -> tuple[Mapping[str, Ragged], str]:
        """Generates the rows; raises UserError if a row of val or test occurs twice, or in train."""
        rng = np.random.default_rng(self.data_seed)
        shares = np.array_split(np.arange(self.sizes["train"]), len(self.train_pairs))
        counts = zip(self.train_pairs, shares, strict=True)
        train = [row for pairs, share in counts for row in self._rows(len(share), pairs, rng)]
        val, test = (self._rows(self.sizes[k], n, rng) for k, n in (("val", self.pairs), ("test", self.test_pairs)))
        rows = {"train": train, "val": list(val), "test": list(test)}
        known = {name: {row.tobytes() for row in split} for name, split in rows.items()}
        if len(set.union(*known.values())) < len(known["train"]) + self.sizes["val"] + self.sizes["test"]:
            raise UserError(
                "Some rows of the splits of recall are the same; raise data.pairs, data.keys or data.values."
            )
        # Test rows follow from the same seed; without them, test_pairs is a change that `evaluate` accepts.
        same = b"".join(row.tobytes() for name in ("train", "val") for row in rows[name])
        fingerprint = hashlib.sha256(same).hexdigest()[:16]
        return {name: lay_out(split, np.zeros(len(split), np.int64)) for name, split in rows.items()}, fingerprint

    def answers(self, row: np.ndarray) -> np.ndarray:
        """True at the values of the queries."""
        places = np.arange(len(row))
        return (places >= len(row) // 2) & (places % 2 == 1)

    def baselines(self) -> dict[str, float]:
        """Accuracy without reading the keys: any value, or the most frequent value among the pairs of the row."""
        return {"any value": 1 / self.values, "most frequent value of the row": self.most_frequent_answer()}

    def _rows(self, rows: int, pairs: int, rng: np.random.Generator) -> np.ndarray:
        """Complete rows, int64 [rows, 4 pairs]."""
        keys = rng.permuted(np.tile(np.arange(self.keys), (rows, 1)), axis=1)[:, :pairs] + FIRST_KEY
        values = rng.integers(self.values, size=(rows, pairs)) + FIRST_KEY + self.keys
        shown = np.stack([keys, values], 2)
        order = rng.permuted(np.tile(np.arange(pairs), (rows, 1)), axis=1)
        asked = np.take_along_axis(shown, order[..., None], 1)
        return np.concatenate([shown, asked], 1).reshape(rows, 4 * pairs)
