"""Tokenised classification of texts and pairs of texts, for fine-tuning language models."""

import abc
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from subquad.data import ragged
from subquad.data.ragged import Ragged
from subquad.data.sampling import kept_apart, some
from subquad.data.split_data import CachedData, SequenceData
from subquad.data.text.glue_files import Labelled
from subquad.data.text.tokenizer import ByteTokenizer, Tokenizer, Vocabulary
from subquad.data.text.tokenizer_choice import TokenizerChoice
from subquad.specs import TextSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed, Share


class SentenceData(CachedData, SequenceData):
    """Sequences `<s> a </s>`, or `<s> a </s></s> b </s>` for pairs, truncated to `max_len` tokens.

    Of a pair the longer text is truncated first. Subclasses define the texts.

    task: the task's name, for messages. tokenizer: a folder or name; with pretrained weights (`ckpt_path`) it must be
    the tokenizer of the pretrained language model. "bytes" reads bytes; None trains a tokenizer of `vocab` entries on
    the training texts. protocol: "paper" selects and reports on the same rows, as is common for data without public
    test labels; "clean" holds out `val_fraction` of the training rows by `split_seed` for selection. cases: the maximum
    number of rows of train and of test. synthetic: synthetic rows.
    """

    classes: int

    def __init__(
        self, *, task: str, root: str, tokenizer: str | None = None, vocab: Count = 50265, max_len: Count = 512,
        protocol: Literal["paper", "clean"] = "paper", val_fraction: Share = 0.1, split_seed: Seed = 42,
        cases: Count | None = None, synthetic: bool = False, **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        if max_len < 8:
            raise UserError(f"data.max_len is {max_len}; sentences need at least 8 tokens.")
        self.task, self.root, self.synthetic, self.max_len = task, Path(root), synthetic, max_len
        self.tokenizer = TokenizerChoice(task, tokenizer, vocab, self.root, synthetic)
        self.protocol, self.val_fraction, self.split_seed = protocol, val_fraction, split_seed
        self.cases = cases

    @abc.abstractmethod
    def texts(self) -> Mapping[str, Labelled]:
        """The rows of `train` and of `test`, on which results are reported."""

    @property
    @abc.abstractmethod
    def source_state(self) -> str:
        """A hash that changes with the files that `texts` reads."""

    @property
    def spec(self) -> TextSpec:
        vocabulary = Vocabulary.from_facts(self._cache.facts["vocabulary"])
        return TextSpec(
            max_len=self.max_len, vocab=vocabulary.size, classes=self.classes, tokenizer=vocabulary.fingerprint
        )

    def fetch(self) -> None:
        self.tokenizer.fetch()

    def _synthesise(self) -> None:
        self.tokenizer.write_synthetic()

    def load(self) -> tuple[dict[str, Ragged], str]:
        train, test = (self._some(self._cache.splits[name], name) for name in ("train", "test"))
        if self.protocol == "paper":
            return {"train": train, "val": test, "test": test}, self._cache.fingerprint
        fit, val = kept_apart(np.arange(len(train)), self.val_fraction, self.split_seed)
        return {"train": train.take(fit), "val": train.take(val), "test": test}, self._cache.fingerprint

    @property
    def cache_folder(self) -> Path:
        settings = (self.source_state, self.max_len, *self.tokenizer.state)
        return self.root / "cache" / self.task / hashlib.sha256(repr(settings).encode()).hexdigest()[:12]

    def _some(self, rows: Ragged, name: str) -> Ragged:
        if self.cases is None:  # keeps the memory map
            return rows
        return rows.take(some(len(rows), self.cases, [self.split_seed, name == "test"]))

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        texts = self.texts()
        training_texts = [*texts["train"].first, *(texts["train"].second or ())]
        tokenizer, folder = self.tokenizer.opened(training_texts, f"{self.task.replace('/', '-')}-{self.source_state}")
        splits = {name: lay_out(rows, tokenizer, self.max_len) for name, rows in texts.items()}
        return splits, {"vocabulary": tokenizer.vocabulary.facts, "tokenizer": str(folder)}


def lay_out(rows: Labelled, tokenizer: Tokenizer | ByteTokenizer, max_len: int) -> Ragged:
    """The token sequences of all rows."""
    vocabulary = tokenizer.vocabulary
    start, end = ([vocabulary.start], [vocabulary.end])
    first = list(tokenizer.documents(rows.first))
    second = [None] * len(first) if rows.second is None else list(tokenizer.documents(rows.second))
    sequences = []
    for a, b in zip(first, second, strict=True):
        if b is None:
            sequences.append(np.concatenate([start, a[: max_len - 2], end]))
        else:
            kept_a, kept_b = shares(len(a), len(b), max_len - 4)
            sequences.append(np.concatenate([start, a[:kept_a], end, end, b[:kept_b], end]))
    return ragged.lay_out([sequence.astype(vocabulary.dtype) for sequence in sequences], rows.targets)


def shares(a: int, b: int, total: int) -> tuple[int, int]:
    """The truncated lengths of a pair, at most `total` in sum: first the longer one is truncated, then both equally."""
    if a + b <= total:
        return a, b
    kept = min(a, b, total // 2)
    return (kept, total - kept) if a < b else (total - kept, kept)
