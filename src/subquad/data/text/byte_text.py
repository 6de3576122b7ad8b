"""The Text task of the Long Range Arena: sentiment of film reviews (IMDB), read byte by byte.

Source: Maas et al. 2011, https://ai.stanford.edu/~amaas/data/sentiment/; Tay et al. 2021 for the byte form.
"""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from subquad.data import ragged
from subquad.data.archives import retrieve
from subquad.data.listing import files_below
from subquad.data.ragged import Ragged
from subquad.data.sampling import kept_apart, some
from subquad.data.split_data import CachedData, SequenceData
from subquad.specs import DataSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed, Share

URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
GENUINE = 12_500
"""Reviews of each label in train and in test."""

_LABELS = ("neg", "pos")
_LARGEST = 2**20
"""Bytes of a file in the archive that is no review: the longest review has 14 kB."""
_MEMBER = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_\d+\.txt")


class ByteText(CachedData, SequenceData):
    """25,000 training and 25,000 test reviews; byte b is token b + 1, truncated to `max_len`.

    source: the archive aclImdb_v1.tar.gz or the folder aclImdb unpacked from it; by default
    `root`/imdb/aclImdb_v1.tar.gz. protocol: "paper" validates on the test reviews, as all published code does; "clean"
    holds out `val_fraction` of the training reviews by `split_seed`. cases: the maximum number of rows of train and of
    test. synthetic: synthetic reviews in place of the published ones.
    """

    task = "lra/text"

    def __init__(
        self, *, root: str, source: str | None = None, max_len: Count = 4000,
        protocol: Literal["paper", "clean"] = "paper", val_fraction: Share = 0.1, split_seed: Seed = 42,
        cases: Count | None = None, synthetic: bool = False, **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        self.root, self.synthetic = Path(root), synthetic
        self.source = self._source(source, f"imdb/{Path(URL).name}", "imdb")
        if synthetic:
            self.source /= "aclImdb"
        self.max_len, self.protocol, self.val_fraction, self.split_seed = max_len, protocol, val_fraction, split_seed
        self.cases = cases

    @property
    def spec(self) -> DataSpec:
        return DataSpec(max_len=self.max_len, vocab=257, classes=len(_LABELS))

    def fetch(self) -> None:
        if self.synthetic or self.source.exists():
            return
        try:
            retrieve(URL, self.source.parent, f"md5:{MD5}", self.source.name)
        except (OSError, ValueError) as error:
            raise UserError(
                f"The reviews could not be fetched from {URL} ({error}); download them elsewhere to {self.source}."
            ) from None

    def load(self) -> tuple[dict[str, Ragged], str]:
        train, test = (self._cut(self._cache.splits[name], name) for name in ("train", "test"))
        if self.protocol == "paper":
            return {"train": train, "val": test, "test": test}, self._cache.fingerprint
        fit, val = kept_apart(np.arange(len(train)), self.val_fraction, self.split_seed)
        return {"train": train.take(fit), "val": train.take(val), "test": test}, self._cache.fingerprint

    @property
    def cache_folder(self) -> Path:
        if not self.source.exists():
            raise UserError(
                f"{self.source} is missing; run `python scripts/prepare.py task=lra/text`, or put {URL} there."
            )
        files = files_below(self.source, ".txt") if self.source.is_dir() else [self.source]
        return self.root / "cache" / "imdb" / ragged.state_of(files)

    @staticmethod
    def write_synthetic(root: Path) -> Path:
        """Writes 24 reviews of each label and split in the layout of the archive, and returns their `source`."""
        rng = np.random.default_rng(0)
        words = {"neg": ["dull", "awful", "naïve"], "pos": ["great", "moving", "élan"]}
        for split in ("train", "test"):
            for label, vocabulary in words.items():
                folder = root / "aclImdb" / split / label
                folder.mkdir(parents=True, exist_ok=True)
                for number in range(24):
                    text = " ".join(rng.choice([*vocabulary, "film", "the", "a"], size=rng.integers(5, 60)))
                    (folder / f"{number}_{rng.integers(1, 11)}.txt").write_text(
                        f"{split} {number}: {text}", encoding="utf-8"
                    )
        return root / "aclImdb"

    def _cut(self, rows: Ragged, split: str) -> Ragged:
        chosen = some(len(rows), self.cases, [self.split_seed, split == "test"])
        sequences = [np.asarray(rows[int(i)][: self.max_len]) for i in chosen]
        return ragged.lay_out(sequences, rows.targets[chosen])

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        reviews = dict(sorted(self._reviews()))
        splits = {}
        for split in ("train", "test"):
            rows = [(key, text) for key, text in reviews.items() if key[0] == split]
            labels = np.array([key[1] for key, _ in rows], np.int64)
            counts = np.bincount(labels, minlength=2).tolist()
            if not self.synthetic and counts != [GENUINE] * 2:
                raise UserError(
                    f"{self.source} has {counts[0]} negative and {counts[1]} positive reviews in {split} where "
                    f"{GENUINE} of each are expected, named as train/neg/0_3.txt in {Path(URL).name} or in the folder "
                    "unpacked from it; data.source names either."
                )
            tokens = [np.frombuffer(text, np.uint8).astype(np.uint16) + 1 for _, text in rows]
            splits[split] = ragged.lay_out(tokens, labels)
        return splits, {"source": self.source.name}

    def _reviews(self) -> Iterator[tuple[tuple[str, int, int], bytes]]:
        """(split, label, number) and the bytes of every review; an archive is read without unpacking it."""
        if self.source.is_dir():
            for path in files_below(self.source, ".txt"):
                if match := _MEMBER.fullmatch(path.relative_to(self.source).as_posix()):
                    yield _key(match), _checked(path.read_bytes(), path)
            return
        try:
            with tarfile.open(self.source) as members:
                for member in members:
                    file = members.extractfile(member) if member.isfile() and member.size < _LARGEST else None
                    if file is not None and (match := _MEMBER.fullmatch(member.name)):
                        yield _key(match), _checked(file.read(), member.name)
        except (OSError, EOFError, tarfile.TarError) as error:
            raise UserError(
                f"{self.source} cannot be read ({error}); data.source names {Path(URL).name} or the folder unpacked "
                "from it."
            ) from None


def _key(match: re.Match[str]) -> tuple[str, int, int]:
    return match[1], _LABELS.index(match[2]), int(match[3])


def _checked(text: bytes, where: object) -> bytes:
    if not text:
        raise UserError(f"{where} is empty, and no published review is; use the published one.")
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 ({error}); use the published one.") from None
    return text
