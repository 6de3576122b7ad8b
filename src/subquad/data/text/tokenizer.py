"""Tokenizers: published ones, or a byte-level BPE trained on the text; id 0 is always padding."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from subquad.data.synthetic import written_once
from subquad.utils.errors import UserError, first_line

SPECIAL = {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
"""RoBERTa's special tokens by their names in the transformers library, in the order of their ids."""

_NEEDED = ("pad_token", "cls_token", "sep_token", "mask_token")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PIECE = 1 << 17
_SMALLEST = 256 + len(SPECIAL)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids of a model: those of a tokenizer, but padding and the token of id 0 have exchanged their ids.

    start, end, mask: the ids of <s>, </s> and <mask> or their equivalents. special: the ids of all special tokens.
    fingerprint: the first twelve hexadecimal digits of a hash of all tokens and their ids.
    """

    size: int
    start: int
    end: int
    mask: int
    special: tuple[int, ...]
    fingerprint: str

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Vocabulary":
        """The vocabulary of JSON-serialisable `facts`."""
        return cls(**{**facts, "special": tuple(facts["special"])})

    @property
    def facts(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest integer type for all ids."""
        return np.uint16 if self.size <= 1 << 16 else np.uint32


class Tokenizer:
    """A tokenizer of the transformers library. Raises UserError if it is unsuitable for masked language models."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer  # slow to import, and only needed for text that is not tokenised yet

        # Set explicitly, so that the library does not warn about later worker processes, which never use it.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        try:
            loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the library's parser raises bare exceptions
            raise UserError(
                f"{folder} holds no tokenizer that can be read ({first_line(error)}); give data.tokenizer the folder "
                "of a tokenizer.json, the name of a published one, or null to train one on the text."
            ) from None
        missing = [name for name in _NEEDED if getattr(loaded, name, None) is None]
        if missing or not hasattr(loaded, "backend_tokenizer"):
            reason = f"has no {missing[0]}" if missing else "has no fast form"
            raise UserError(
                f"The tokenizer in {folder} {reason}; choose one made for masked language models, as RoBERTa's is."
            )
        self._take(loaded.backend_tokenizer, loaded.pad_token_id)
        self.vocabulary = self._describe(loaded)

    def _take(self, backend: Any, padding: int) -> None:
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True  # "<s>" inside a text is text
        self.backend, self.padding = backend, padding

    @property
    def saved(self) -> dict[str, Any]:
        """All but the vocabulary as a JSON-serialisable dictionary."""
        return {"json": self.backend.to_str(), "padding": self.padding}

    @classmethod
    def restored(cls, saved: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """The tokenizer that was `saved`, with its vocabulary."""
        from tokenizers import Tokenizer as Backend

        tokenizer = cls.__new__(cls)
        tokenizer._take(Backend.from_str(saved["json"]), saved["padding"])
        tokenizer.vocabulary = vocabulary
        return tokenizer

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, without special tokens; the library processes the texts in several threads."""
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        rows = [np.asarray(encoding.ids, self.vocabulary.dtype) for encoding in encodings]
        for row in rows if self.padding else ():
            row[row == 0] = self.padding
        return rows

    def documents(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of each document; long documents are divided before line ends to use several threads."""
        waiting: list[tuple[str, bool]] = []
        size = 0
        done: list[np.ndarray] = []
        for text in texts:
            cut = list(pieces(text))
            waiting += [(piece, number == len(cut) - 1) for number, piece in enumerate(cut)]
            size += len(text)
            if size > 16 * _PIECE:
                yield from self._joined(waiting, done)
                waiting, size = [], 0
        yield from self._joined(waiting, done)

    def _joined(self, waiting: list[tuple[str, bool]], done: list[np.ndarray]) -> Iterator[np.ndarray]:
        for ids, (_, last) in zip(self.encode([piece for piece, _ in waiting]), waiting, strict=True):
            done.append(ids)
            if last:
                yield np.concatenate(done)
                done.clear()

    def _describe(self, loaded: Any) -> Vocabulary:
        ids = {token: self._model_id(i) for token, i in self.backend.get_vocab(with_added_tokens=True).items()}
        size = max(ids.values()) + 1
        digest = hashlib.sha256(json.dumps(sorted(ids.items())).encode()).hexdigest()[:12]
        start, end, mask = (self._model_id(getattr(loaded, f"{name}_id")) for name in _NEEDED[1:])
        special = sorted({self._model_id(i) for i in loaded.all_special_ids})
        return Vocabulary(size, start, end, mask, tuple(special), digest)

    def _model_id(self, i: int) -> int:
        """Exchanges the ids 0 and padding."""
        return {0: self.padding, self.padding: 0}.get(i, i)


BYTES = "bytes"
"""The name of the `ByteTokenizer` in `data.tokenizer`."""


class ByteTokenizer:
    """The bytes of a text in UTF-8: byte b is token b + 1, followed by the ids of <s>, </s> and <mask>."""

    vocabulary = Vocabulary(260, start=257, end=258, mask=259, special=(0, 257, 258, 259), fingerprint="b17e5")

    def documents(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of each document."""
        for text in texts:
            yield np.frombuffer(text.encode(errors="replace"), np.uint8).astype(self.vocabulary.dtype) + 1


def pieces(text: str, limit: int = _PIECE) -> Iterator[str]:
    """The text in pieces of at most `limit` characters, divided before a line end or else before a space."""
    start = 0
    while len(text) - start > limit:
        ends = (text.rfind(mark, start + limit // 2, start + limit) for mark in ("\n", " "))
        end = next((end for end in ends if end > start), start + limit)
        yield text[start:end]
        start = end
    yield text[start:]


def train_tokenizer(texts: Iterable[str], vocab: int, folder: Path) -> Path:
    """Trains a byte-level BPE (Radford et al. 2019, as in RoBERTa) of at most `vocab` entries unless the folder exists.

    The result does not depend on the number of threads. `transformers` can open the folder too.
    """
    if vocab < _SMALLEST:
        raise UserError(f"data.vocab is {vocab}; all bytes and the special tokens need {_SMALLEST}.")

    def write(target: Path) -> None:
        from tokenizers import Tokenizer as Backend
        from tokenizers import decoders, models, pre_tokenizers, trainers

        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=list(SPECIAL.values()), show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        backend.train_from_iterator(texts, trainer)
        backend.save(str(target / "tokenizer.json"))
        names = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL, "bos_token": "<s>", "eos_token": "</s>"}
        (target / "tokenizer_config.json").write_text(json.dumps(names, indent=1), encoding="utf-8")

    return written_once(folder, write)


def tokenizer_folder(name: str, root: Path) -> Path:
    """The folder of `data.tokenizer`: itself if it exists, else the folder to which `fetch_tokenizer` downloads it."""
    if Path(name).is_dir():
        return Path(name)
    if not _HUB_NAME.fullmatch(name):
        raise UserError(f"data.tokenizer={name} is neither a folder nor the name of a published tokenizer.")
    return root / "tokenizers" / name.replace("/", "--")


def synthetic_tokenizer(name: str, root: Path) -> Path:
    """The folder of `data.tokenizer`: itself if it exists, else that of `write_synthetic_tokenizer`."""
    return Path(name) if Path(name).is_dir() else root / "synthetic" / "tokenizer"


def write_synthetic_tokenizer(folder: Path) -> Path:
    """Writes a small tokenizer of a few English words, used for all synthetic data, unless the folder exists."""
    words = "the sea a wave of film and tree was sun good moon bad root is question answer same"
    return train_tokenizer([words], 300, folder)


def fetch_tokenizer(name: str, root: Path) -> None:
    """Downloads a published tokenizer, such as FacebookAI/roberta-base, unless it exists."""
    folder = tokenizer_folder(name, root)
    if folder.is_dir():
        return

    def write(target: Path) -> None:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(name, trust_remote_code=False).save_pretrained(str(target))

    try:
        written_once(folder, write)
    except (OSError, ValueError) as error:
        raise UserError(
            f"The tokenizer {name} could not be fetched ({first_line(error)}); put its tokenizer.json and "
            f"tokenizer_config.json into {folder}."
        ) from None
