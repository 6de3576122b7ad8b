"""Labelled texts and pairs of texts as tokens of a tokenizer, for the fine-tuning of language models."""

import abc
import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from subquad.data import ragged
from subquad.data.ragged import Cache, Ragged
from subquad.data.sampling import Seed, kept_apart, some
from subquad.data.split_data import SequenceData
from subquad.data.text.glue_files import Labelled
from subquad.data.text.tokenizer import Tokenizer, Vocabulary
from subquad.data.text.tokenizer_choice import TokenizerChoice
from subquad.specs import TextSpec
from subquad.utils.errors import UserError


class SentenceData(SequenceData):
    """`<s> a </s>`, or `<s> a </s></s> b </s>` for pairs, cut to `max_len` tokens.

    A pair is cut at the longer of the two, so that something of both is left. A family says what the texts are.

    task: as in `task=`, for messages. tokenizer: the folder or name of one; that of the language model whose weights
    the run starts from (`ckpt_path`). None trains one of `vocab` entries on the training texts. protocol: "paper"
    selects and reports on the same rows, as the field does where the labels of the test are hidden; "clean" keeps
    `val_fraction` of the training rows to select on, by `split_seed`. cases: at most so many rows of train and of test.
    synthetic: made-up rows.
    """

    classes: int

    def __init__(
        self, *, task: str, root: str, tokenizer: str | None = None, vocab: int = 50265, max_len: int = 512,
        protocol: Literal["paper", "clean"] = "paper", val_fraction: float = 0.1, split_seed: Seed = 42,
        cases: int | None = None, synthetic: bool = False, **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        if (
            max_len < 8
            or protocol not in ("paper", "clean")
            or not 0 < val_fraction < 1
            or (cases is not None and cases < 1)
        ):
            raise UserError(
                "Sentences need data.max_len of at least 8, protocol paper or clean, data.val_fraction between 0 and 1 "
                f"and data.cases of at least 1 (or null); got {max_len}, {protocol}, {val_fraction} and {cases}."
            )
        self.task, self.root, self.max_len = task, Path(root), max_len
        self.tokenizer = TokenizerChoice(task, tokenizer, vocab, self.root, synthetic)
        self.protocol, self.val_fraction, self.split_seed = protocol, val_fraction, split_seed
        self.cases, self.synthetic = cases, synthetic

    @abc.abstractmethod
    def texts(self) -> Mapping[str, Labelled]:
        """The rows of `train`, and as `test` those that results are reported on."""

    @property
    @abc.abstractmethod
    def source_state(self) -> str:
        """Changes with the files that `texts` reads."""

    @property
    def spec(self) -> TextSpec:
        vocabulary = Vocabulary.from_facts(self._cache.facts["vocabulary"])
        return TextSpec(
            max_len=self.max_len, vocab=vocabulary.size, classes=self.classes, tokenizer=vocabulary.fingerprint
        )

    def fetch(self) -> None:
        """Downloads a published tokenizer unless it is here already."""
        self.tokenizer.fetch()

    def require(self) -> None:
        """Raises UserError where the texts or the tokenizer are missing."""
        _ = self.cache_folder

    def prepare_data(self) -> None:
        """Cuts the texts into tokens once; a second process meanwhile waits and finds them done."""
        self.tokenizer.write_synthetic()
        ragged.prepare(self.cache_folder, self._make)

    def load(self) -> tuple[dict[str, Ragged], str]:
        train, test = (self._some(self._cache.splits[name], name) for name in ("train", "test"))
        if self.protocol == "paper":
            return {"train": train, "val": test, "test": test}, self._cache.fingerprint
        fit, val = kept_apart(np.arange(len(train)), self.val_fraction, self.split_seed)
        return {"train": train.take(fit), "val": train.take(val), "test": test}, self._cache.fingerprint

    @property
    def cache_folder(self) -> Path:
        """Where the tokens lie; the name tells apart all settings that change them."""
        settings = (self.source_state, self.max_len, *self.tokenizer.state)
        return self.root / "cache" / self.task / hashlib.sha256(repr(settings).encode()).hexdigest()[:12]

    @cached_property
    def _cache(self) -> Cache:
        return ragged.read_prepared(self.cache_folder, self.task)

    def _some(self, rows: Ragged, name: str) -> Ragged:
        if self.cases is None:  # as they lie on the disk
            return rows
        return rows.take(some(len(rows), self.cases, [self.split_seed, name == "test"]))

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        texts = self.texts()
        known = [*texts["train"].first, *(texts["train"].second or ())]
        tokenizer, folder = self.tokenizer.opened(known, f"{self.task.replace('/', '-')}-{self.source_state}")
        splits = {name: lay_out(rows, tokenizer, self.max_len) for name, rows in texts.items()}
        return splits, {"vocabulary": tokenizer.vocabulary.facts, "tokenizer": str(folder)}


def lay_out(rows: Labelled, tokenizer: Tokenizer, max_len: int) -> Ragged:
    """Token sequences of all rows."""
    vocabulary = tokenizer.vocabulary
    start, end = ([vocabulary.start], [vocabulary.end])
    first = list(tokenizer.documents(rows.first))
    second = [None] * len(first) if rows.second is None else list(tokenizer.documents(rows.second))
    parts = []
    for a, b in zip(first, second, strict=True):
        if b is None:
            parts.append(np.concatenate([start, a[: max_len - 2], end]))
        else:
            kept_a, kept_b = shares(len(a), len(b), max_len - 4)
            parts.append(np.concatenate([start, a[:kept_a], end, end, b[:kept_b], end]))
    return ragged.lay_out([part.astype(vocabulary.dtype) for part in parts], rows.targets)


def shares(a: int, b: int, room: int) -> tuple[int, int]:
    """How much is kept of two lengths so that they fit: the longer one is cut first, then both alike."""
    if a + b <= room:
        return a, b
    kept = min(a, b, room // 2)
    return (kept, room - kept) if a < b else (room - kept, kept)
