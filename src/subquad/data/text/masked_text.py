"""Masked language modelling on any text.

Source: Devlin et al. 2019, https://arxiv.org/abs/1810.04805, with two choices of Liu et al. 2019 (RoBERTa),
https://arxiv.org/abs/1907.11692: dynamic masking, and blocks that cross document boundaries.
"""

import hashlib
import logging
import math
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from subquad.data import ragged
from subquad.data.parallel import progress
from subquad.data.ragged import Ragged
from subquad.data.split_data import CachedData
from subquad.data.text import sources
from subquad.data.text.sources import Texts, Unit
from subquad.data.text.token_masking import Blocks, MaskedBlocks, Masking
from subquad.data.text.tokenizer import ByteTokenizer, Tokenizer, Vocabulary
from subquad.data.text.tokenizer_choice import TokenizerChoice
from subquad.specs import MaskedBatch, TextSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Fraction, Seed, Share

log = logging.getLogger(__name__)


class MaskedText(CachedData):
    """The user's own text or a published data set, split by documents into train, val and test, and packed into blocks.

    folder: a folder of .txt files in UTF-8, with subfolders; `document` sets whether each file or each paragraph is a
    document. dataset: a folder that the `datasets` library saved or can read (parquet, arrow, JSON, CSV), or the name
    of a published data set, with its `subset`; each row of `column` is a document, and its splits `validation` and
    `test` are used if it has both. Exactly one of folder and dataset is required.

    tokenizer: a folder or name for `transformers`; None trains a byte-level BPE of `vocab` entries on the training
    documents. A block is <s> and the next `max_len - 1` tokens of the text, in which each document ends with </s>; only
    the last block of a split is shorter. Masks (see `Masking`) are drawn anew each time in training, and fixed by
    `split_seed` in evaluation. synthetic: synthetic text.
    """

    task = "mlm/text"

    def __init__(
        self, *, root: str, folder: str | None = None, dataset: str | None = None, subset: str | None = None,
        column: str = "text", document: Unit = "file", tokenizer: str | None = None, vocab: Count = 50265,
        max_len: Count = 512, masked: Fraction = 0.15, swapped: Fraction = 0.1, kept: Fraction = 0.1,
        val_fraction: Share = 0.01, test_fraction: Share = 0.01, split_seed: Seed = 42, synthetic: bool = False,
        **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        if max_len < 2:
            raise UserError(f"data.max_len is {max_len}; a block of masked text has at least 2 tokens.")
        self.root, self.synthetic = Path(root), synthetic
        self.synthetic_home = self.root / "synthetic" / "masked_text"
        if synthetic:
            folder, dataset = str(self.synthetic_home), None
        if folder is not None and dataset is not None:
            raise UserError("Masked text reads data.folder or data.dataset, not both; leave one of them out.")
        self.folder, self.dataset, self.subset = folder, dataset, subset
        self.column, self.document = column, document
        self.max_len = max_len
        self.tokenizer = TokenizerChoice(self.task, tokenizer, vocab, self.root, synthetic)
        self.masking = Masking(masked, swapped, kept)
        self.fractions, self.split_seed = {"val": val_fraction, "test": test_fraction}, split_seed

    @property
    def spec(self) -> TextSpec:
        vocabulary = self._vocabulary
        return TextSpec(max_len=self.max_len, vocab=vocabulary.size, tokenizer=vocabulary.fingerprint)

    def fetch(self) -> None:
        self.tokenizer.fetch()
        if self.dataset is not None:
            sources.fetch_dataset(self.dataset, self.subset, self.root)

    def _synthesise(self) -> None:
        super()._synthesise()
        self.tokenizer.write_synthetic()

    def load(self) -> tuple[dict[str, Blocks], str]:
        log.info(
            "The tokenizer of this text is %s; tasks that fine-tune its model (ckpt_path=) need it as data.tokenizer.",
            self._cache.facts["tokenizer"],
        )
        start = self._vocabulary.start
        blocks = {name: Blocks(rows.values, self.max_len, start) for name, rows in self._cache.splits.items()}
        both = f"{self._cache.fingerprint} {self._vocabulary.fingerprint}"
        return blocks, hashlib.sha256(both.encode()).hexdigest()[:16]

    def batched(self, split: str) -> Dataset[MaskedBatch]:
        """Batches of blocks with masked tokens."""
        return MaskedBlocks(self.splits[split], self._vocabulary, self.masking, self.seed, self.split_seed)

    def baselines(self) -> dict[str, float]:
        """The perplexity of the token frequencies of the training split."""
        return {"token frequencies": self._cache.facts["unigram"]}

    @property
    def cache_folder(self) -> Path:
        return self.root / "cache" / "masked_text" / self._digest

    @staticmethod
    def write_synthetic(root: Path) -> Path:
        """Writes 40 files, each with the two words of one of eight subjects, to `root`, and returns it as `folder`."""
        rng = np.random.default_rng(0)
        subjects = [
            "sea wave",
            "boat sail",
            "hill rock",
            "snow goat",
            "leaf root",
            "bark tree",
            "bowl spoon",
            "sun moon",
        ]
        for number in range(40):
            folder = root / f"{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            lines = rng.choice(subjects[number % 8].split(), (int(rng.integers(8, 16)), 8))
            paragraph = "".join(" ".join(line) + ".\n" for line in lines)
            (folder / f"{number}.txt").write_text(f"Text {number}.\n\n{paragraph}", encoding="utf-8")
        return root

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.from_facts(self._cache.facts["vocabulary"])

    @cached_property
    def _digest(self) -> str:
        if self.folder is None and self.dataset is None:
            raise UserError("Masked text needs data.folder=<folder of .txt files> or data.dataset=<name or folder>.")
        if self.folder is not None:
            folder = _existing(Path(self.folder), "data.folder")
            state = ragged.state_of(sources.text_files(folder), folder)
        else:
            state = sources.state_of(self._dataset_place)
        source = (state, self.subset, self.column, self.document)
        settings = (*source, *self.tokenizer.state, self.fractions, self.split_seed)
        return hashlib.sha256(repr(settings).encode()).hexdigest()[:12]

    @property
    def _dataset_place(self) -> Path:
        assert self.dataset is not None
        return _existing(sources.dataset_folder(self.dataset, self.subset, self.root), "data.dataset")

    def _texts(self, scratch: Path) -> Mapping[str, Texts]:
        """The documents of each split; a split that the data do not have is drawn from the training documents."""
        given: dict[str, Texts] = {}
        if self.folder is not None:
            texts: Texts = sources.read_folder(Path(self.folder), self.document)
        else:
            splits = sources.read_dataset(self._dataset_place, self.column, scratch, self.subset)
            names = (("val", "validation"), ("test", "test"))
            texts, given = splits["train"], {name: splits[own] for name, own in names if own in splits}
        missing = {name: fraction for name, fraction in self.fractions.items() if name not in given}
        drawn = sources.split_documents(len(texts), missing, self.split_seed)
        return {name: texts.take(indices) for name, indices in drawn.items()} | given

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix=".tokens-", dir=self.cache_folder.parent) as folder:
            texts = self._texts(Path(folder))
            tokenizer, place = self.tokenizer.opened(texts["train"], self._digest)
            splits = {name: lay_down(rows, tokenizer, Path(folder) / f"{name}.tokens") for name, rows in texts.items()}
            facts = {
                "vocabulary": tokenizer.vocabulary.facts,
                "tokenizer": str(place),
                "unigram": unigram_perplexity(splits["train"].values, splits["test"].values, tokenizer.vocabulary),
            }
            return splits, facts


def _existing(place: Path, key: str) -> Path:
    if not place.exists():
        raise UserError(
            f"{place} is missing; run `python scripts/prepare.py` with the task and this {key}, or put the files there."
        )
    return place


def lay_down(texts: Texts, tokenizer: Tokenizer | ByteTokenizer, path: Path) -> Ragged:
    """The tokens of all documents, each followed by </s>, written to `path` and memory-mapped from there."""
    lengths = []
    with path.open("wb") as file, progress(f"Tokens of {len(texts):,} documents", len(texts)) as report:
        for ids in tokenizer.documents(texts):
            if len(ids):
                file.write(np.append(ids, ids.dtype.type(tokenizer.vocabulary.end)).tobytes())
            lengths.append(len(ids) + 1 if len(ids) else 0)
            report(len(lengths))
    if not any(lengths):
        raise UserError("A split of the text has no words; take empty documents out, or change data.split_seed.")
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    values = np.memmap(path, tokenizer.vocabulary.dtype, "r")
    return Ragged(values, offsets, np.zeros(len(lengths), np.int8))


def unigram_perplexity(train: np.ndarray, test: np.ndarray, vocabulary: Vocabulary) -> float:
    """The perplexity on text tokens of a unigram model with the counts of training (plus one each)."""
    text_ids = np.delete(np.arange(vocabulary.size), vocabulary.special)
    train_counts, test_counts = (_counts(tokens, vocabulary.size)[text_ids] for tokens in (train, test))
    probability = (train_counts + 1) / (train_counts + 1).sum()
    return math.exp(-float((test_counts * np.log(probability)).sum() / test_counts.sum()))


def _counts(tokens: np.ndarray, size: int, chunk: int = 1 << 24) -> np.ndarray:
    chunks = (tokens[i : i + chunk] for i in range(0, len(tokens), chunk))
    return sum((np.bincount(ids, minlength=size) for ids in chunks), np.zeros(size, np.int64))
