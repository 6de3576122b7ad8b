"""The Retrieval task of the Long Range Arena: whether one of two papers, read byte by byte, cites the other.

Source: Tay et al. 2021, https://arxiv.org/abs/2011.04006, from the ACL Anthology Network (Radev et al. 2013).
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from subquad.data import ragged
from subquad.data.parallel import progress
from subquad.data.ragged import Ragged
from subquad.data.sampling import some
from subquad.data.split_data import CachedData, majority_class, padded
from subquad.specs import DataSpec, PairBatch
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
ROWS = {"train": 147_086, "val": 18_090, "test": 17_437}
"""Rows of the published files."""

Literals = Literal["kept", "decoded"]

_FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
_FIRST = 10_000
"""The maximum number of bytes of a text in the official pipeline."""
_SYNTHETIC_ROWS = {"train": 48, "val": 16, "test": 16}


@dataclass(frozen=True, slots=True)
class Pairs:
    """Labelled pairs of byte sequences; the length of a pair is that of its longer sequence."""

    first: Ragged
    second: Ragged

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: bytes of the longer sequence."""
        return np.maximum(self.first.lengths, self.second.lengths)

    @property
    def targets(self) -> np.ndarray:
        """int64 [N]: 1 if one paper cites the other, else 0."""
        return self.first.targets

    def take(self, indices: np.ndarray) -> "Pairs":
        """The rows of these indices, copied into memory in the given order."""
        return Pairs(self.first.take(indices), self.second.take(indices))


class BytePairs(CachedData):
    """147,086 / 18,090 / 17,437 pairs of texts; byte b is token b + 1, each text truncated to `max_len` bytes.

    folder: the folder tsv_data of the release with new_aan_pairs.{train,eval,test}.tsv; by default `root`/aan.
    literals: the files contain each text as a Python bytes literal, b'...' with backslash escapes. "kept" reads the
        characters of the literal, including prefix and escapes, as the official pipeline and code derived from it do;
        "decoded" reads the text itself.
    cases: the maximum number of rows of each split, drawn at random.
    synthetic: synthetic pairs in place of the published ones.

    Both protocols are the same, because the release has a validation split. The licence of the release is that of the
    ACL Anthology Network. Raises UserError, with file and line, for a malformed row.
    """

    task = "lra/retrieval"

    def __init__(
        self, *, root: str, folder: str | None = None, max_len: Count = 4000, literals: Literals = "kept",
        cases: Count | None = None, synthetic: bool = False, **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        if max_len > _FIRST:
            raise UserError(f"data.max_len is {max_len}; Retrieval caches the first {_FIRST} bytes of a text.")
        self.root, self.synthetic = Path(root), synthetic
        self.folder = self._source(folder, "aan", "aan")
        self.max_len, self.literals, self.cases = max_len, literals, cases

    @property
    def spec(self) -> DataSpec:
        return DataSpec(max_len=self.max_len, vocab=257, classes=2)

    def load(self) -> tuple[Mapping[str, Pairs], str]:
        stored = self._cache.splits
        splits = {split: Pairs(stored[f"{split}-first"], stored[f"{split}-second"]) for split in _FILES}
        if self.cases is not None:
            for seed, (split, rows) in enumerate(splits.items()):
                splits[split] = rows.take(some(len(rows), self.cases, seed))
        return splits, self._cache.fingerprint

    def batched(self, split: str) -> Dataset[PairBatch]:
        return PairDataset(self.splits[split])

    def baselines(self) -> dict[str, float]:
        return majority_class(self.splits["train"].targets, self.splits["test"].targets)

    @property
    def cache_folder(self) -> Path:
        state = ragged.state_of(self._files().values())
        return self.root / "cache" / "aan" / f"{state}-{self.literals}-{self.max_len}"

    @staticmethod
    def write_synthetic(root: Path) -> Path:
        """Writes 48/16/16 pairs in the format of the release to `root`, and returns it for use as `folder`.

        Texts of the same subject form a positive pair. Some have line ends, tabs, quotes and non-ASCII letters.
        """
        rng = np.random.default_rng(0)
        subjects = (["parser", "tree", "grammar's"], ["naïve", "Bayes\n", "corpus"])
        common = ["the", "we", "a\tnew", 'so-called "model"', "Über"]
        for split, count in _SYNTHETIC_ROWS.items():
            lines = []
            for number in range(count):
                label, subject = int(rng.integers(2)), int(rng.integers(2))
                texts = [
                    " ".join(rng.choice([*subjects[(subject + other) % 2], *common], rng.integers(4, 40)))
                    for other in (0, 1 - label)
                ]
                literals = [repr(f"{split} {number}: {text}".encode()) for text in texts]
                lines.append("\t".join([f"{label}.0", f"P{number:02}-1001", f"C{number:02}-2002", *literals]))
            (root / _FILES[split]).write_text("\n".join(lines) + "\n", encoding="ascii")
        return root

    def _files(self) -> dict[str, Path]:
        files = {split: self.folder / name for split, name in _FILES.items()}
        for path in files.values():
            if not path.is_file():
                raise UserError(
                    f"{path} is missing; unpack the folder tsv_data of {RELEASE} and put its three files "
                    f"new_aan_pairs.*.tsv there, or set data.folder to it."
                )
        return files

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        splits, before = {}, 0
        with progress("Retrieval: reading the release", sum(ROWS.values())) as show:
            for split, path in self._files().items():
                texts, labels = (bytearray(), bytearray()), []
                offsets: tuple[list[int], list[int]] = ([0], [0])
                with path.open("rb") as file:
                    for number, line in enumerate(file, 1):
                        label, pair = self._row(line, f"{path}, line {number}")
                        labels.append(label)
                        for side, text in enumerate(pair):
                            texts[side].extend(text)
                            offsets[side].append(len(texts[side]))
                        show(before + number)
                if not self.synthetic and len(labels) != ROWS[split]:
                    raise UserError(
                        f"{path} has {len(labels)} rows where {ROWS[split]} are expected; unpack the archive again."
                    )
                before += len(labels)
                for side, name in enumerate(("first", "second")):
                    values = np.frombuffer(texts[side], np.uint8)
                    splits[f"{split}-{name}"] = Ragged(values, np.array(offsets[side]), np.array(labels, np.int64))
        return splits, {"literals": self.literals, "max_len": self.max_len}

    def _row(self, line: bytes, where: str) -> tuple[int, tuple[bytes, bytes]]:
        """The label and the texts of `label <tab> id <tab> id <tab> text <tab> text`."""
        fields = line.rstrip(b"\r\n").split(b"\t")
        if len(fields) != 5:
            raise UserError(
                f"{where} has {len(fields)} columns, not the five of the release; it may be cut off: unpack it again."
            )
        try:
            label = float(fields[0])
        except ValueError:
            label = -1
        if label not in (0, 1):
            raise UserError(f"{where} is labelled {fields[0][:20]!r}, not 0 or 1; the file is not of the release.")
        return int(label), (self._text(fields[3], where), self._text(fields[4], where))

    def _text(self, literal: bytes, where: str) -> bytes:
        quoted = len(literal) > 2 and literal[:2] in (b"b'", b'b"') and literal[-1:] == literal[1:2]
        if not quoted or not literal.isascii():
            raise UserError(f"{where} has a text that is no whole Python bytes literal in ASCII; unpack it again.")
        if self.literals == "kept":
            return literal[: self.max_len]
        try:
            text = ast.literal_eval(literal.decode("ascii"))
        except (ValueError, SyntaxError):
            text = None
        if not isinstance(text, bytes):
            raise UserError(f"{where} has a text that is no Python bytes literal; unpack the archive again.")
        return text[: self.max_len]


class PairDataset(Dataset[PairBatch]):
    """Turns lists of indices into batches of pairs, both sides padded to the longest text of the batch."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, indices: list[int]) -> PairBatch:
        sides = [[side[i].astype(np.int64) + 1 for i in indices] for side in (self.pairs.first, self.pairs.second)]
        longest = max(1, *(len(row) for rows in sides for row in rows))
        (first, first_valid), (second, second_valid) = (padded(rows, longest) for rows in sides)
        return PairBatch(first, first_valid, second, second_valid, torch.from_numpy(self.pairs.targets[indices]))
