"""Text to token ids: a published tokenizer, or a byte-level BPE trained on the text at hand; id 0 is always padding."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subquad.data.synthetic import written_once
from subquad.utils.errors import UserError, first_line

SPECIAL = {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
"""RoBERTa's special tokens, by the names that the transformers library gives their parts; the order is that of ids."""

_NEEDED = ("pad_token", "cls_token", "sep_token", "mask_token")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PIECE = 1 << 17
_SMALLEST = 256 + len(SPECIAL)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a tokenizer, as models see them: 0 is padding, and what stood there has the id that padding had.

    start, end and mask: the tokens <s>, </s> and <mask> by whatever name. special: every token that is no text.
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
        """What `facts` were made of."""
        return cls(**{**facts, "special": tuple(facts["special"])})

    @property
    def facts(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return dataclasses.asdict(self)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest integers that hold every id."""
        return np.uint16 if self.size <= 1 << 16 else np.uint32


class Tokenizer:
    """A tokenizer of the transformers library; raises UserError where one cannot serve a masked language model."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer  # takes seconds, and only needed where text is not yet tokens

        # Said aloud, so that the library does not warn of worker processes made later, which never call it.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        try:
            opened = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # the library's parser raises bare exceptions
            raise UserError(
                f"{folder} holds no tokenizer that can be read ({first_line(error)}); give data.tokenizer the folder "
                "of a tokenizer.json, the name of a published one, or null to train one on the text."
            ) from None
        lacking = [name for name in _NEEDED if getattr(opened, name, None) is None]
        if lacking or not hasattr(opened, "backend_tokenizer"):
            reason = f"has no {lacking[0]}" if lacking else "has no fast form"
            raise UserError(
                f"The tokenizer in {folder} {reason}; choose one made for masked language models, as RoBERTa's is."
            )
        self.backend = opened.backend_tokenizer
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # "<s>" inside a text is text
        self.padding: int = opened.pad_token_id
        self.vocabulary = self._describe(opened)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without special tokens; the library shares the texts among its threads."""
        found = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        rows = [np.asarray(one.ids, self.vocabulary.dtype) for one in found]
        for row in rows if self.padding else ():
            row[row == 0] = self.padding
        return rows

    def documents(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of one document after the other; long ones are cut before line ends, so that threads share them."""
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

    def _describe(self, opened: Any) -> Vocabulary:
        known = {token: self._seen(place) for token, place in self.backend.get_vocab(with_added_tokens=True).items()}
        size = max(known.values()) + 1
        digest = hashlib.sha256(json.dumps(sorted(known.items())).encode()).hexdigest()[:12]
        start, end, mask = (self._seen(getattr(opened, f"{name}_id")) for name in _NEEDED[1:])
        special = sorted({self._seen(place) for place in opened.all_special_ids})
        return Vocabulary(size, start, end, mask, tuple(special), digest)

    def _seen(self, place: int) -> int:
        """The id that models see."""
        return {0: self.padding, self.padding: 0}.get(place, place)


def pieces(text: str, limit: int = _PIECE) -> Iterator[str]:
    """The text in parts of at most `limit` characters, each cut before a line end or, where there is none, a blank."""
    start = 0
    while len(text) - start > limit:
        ends = (text.rfind(mark, start + limit // 2, start + limit) for mark in ("\n", " "))
        end = next((end for end in ends if end > start), start + limit)
        yield text[start:end]
        start = end
    yield text[start:]


def train_tokenizer(texts: Iterable[str], vocab: int, folder: Path) -> Path:
    """Trains a byte-level BPE (Radford et al. 2019, as RoBERTa uses it) of at most `vocab` entries, unless it is there.

    The result depends on the texts alone, not on threads. The folder is one that `transformers` opens too.
    """
    if vocab < _SMALLEST:
        raise UserError(f"data.vocab is {vocab}; all bytes and the special tokens need {_SMALLEST}.")

    def write(target: Path) -> None:
        from tokenizers import Tokenizer as Backend
        from tokenizers import decoders, models, pre_tokenizers, trainers

        made = Backend(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=list(SPECIAL.values()), show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        made.train_from_iterator(texts, trainer)
        made.save(str(target / "tokenizer.json"))
        names = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL, "bos_token": "<s>", "eos_token": "</s>"}
        (target / "tokenizer_config.json").write_text(json.dumps(names, indent=1))

    return written_once(folder, write)


def tokenizer_folder(name: str, root: Path) -> Path:
    """The folder of `data.tokenizer`: itself, or where `fetch_tokenizer` puts a published one."""
    if Path(name).is_dir():
        return Path(name)
    if not _HUB_NAME.fullmatch(name):
        raise UserError(f"data.tokenizer={name} is neither a folder nor the name of a published tokenizer.")
    return root / "tokenizers" / name.replace("/", "--")


def synthetic_tokenizer(name: str, root: Path) -> Path:
    """The folder of `write_synthetic_tokenizer`, in place of a published tokenizer; a name that is a folder stays."""
    return Path(name) if Path(name).is_dir() else root / "synthetic" / "tokenizer"


def write_synthetic_tokenizer(folder: Path) -> Path:
    """A small tokenizer of a few English words, the same for all made-up data, unless it is there."""
    words = "the sea a wave of film and tree was sun good moon bad root is question answer same"
    return train_tokenizer([words], 300, folder)


def fetch_tokenizer(name: str, root: Path) -> None:
    """Downloads a published tokenizer, such as FacebookAI/roberta-base, unless it is here already."""
    folder = tokenizer_folder(name, root)
    if folder.is_dir():
        return

    def write(target: Path) -> None:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(name).save_pretrained(str(target))

    try:
        written_once(folder, write)
    except (OSError, ValueError) as error:
        raise UserError(
            f"The tokenizer {name} could not be fetched ({first_line(error)}); put its tokenizer.json and "
            f"tokenizer_config.json into {folder}."
        ) from None
