"""The user's own labelled texts, one or two in a row of a table."""

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from subquad.data.ragged import Ragged
from subquad.data.text import sources
from subquad.data.text.glue_files import Labelled
from subquad.data.text.own_sequences import OwnSequences
from subquad.data.text.own_tables import Part
from subquad.data.text.sentences import lay_out
from subquad.data.text.tokenizer import BYTES, ByteTokenizer, Tokenizer, Vocabulary
from subquad.data.text.tokenizer_choice import TokenizerChoice
from subquad.specs import TextSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

log = logging.getLogger(__name__)


class OwnTexts(OwnSequences):
    """Sequences `<s> a </s>`, or `<s> a </s></s> b </s>` for pairs, truncated to `max_len` tokens.

    text: the column of texts, or a list of two for pairs; null: the only one, or one that is named text, sentence, ...
    tokenizer: the folder or name of a tokenizer, or bytes; null: one that is trained on the training texts.
    vocab: maximum number of entries of a trained tokenizer.
    max_len: tokens of the longest sequence.

    `rows` are arguments of `OwnSequences`, whose files are CSV, TSV, JSON, JSON lines or parquet.
    """

    task = "text/custom"
    synthetic_file = "train.csv"
    reading_of_further = (*OwnSequences.reading_of_further, "text")
    names = ("text", "sentence", "content", "review", "message", "document")

    def __init__(
        self, *, root: str, text: str | Sequence[str] | None = None, tokenizer: str | None = None, vocab: Count = 5000,
        max_len: Count = 512, **rows: Any,
    ) -> None:  # fmt: skip
        super().__init__(root=root, **rows)
        self.text, self.max_len = [text] if isinstance(text, str) else text, max_len
        if max_len < 8:
            raise UserError(f"data.max_len is {max_len}; texts need at least 8 tokens.")
        if self.text is not None and not 1 <= len(self.text) <= 2:
            raise UserError(f"data.text names {len(self.text)} columns; a row has one text or two.")
        self.tokenizer = TokenizerChoice(self.task, tokenizer, vocab, self.root, self.synthetic)

    @property
    def spec(self) -> TextSpec:
        """Its length is that of the longest row; with a given tokenizer `max_len`, the positions of its model."""
        known = Vocabulary.from_facts(self._facts["vocabulary"])
        own = self.tokenizer.name in (None, BYTES)
        longest = self._facts["longest"] if own else self.max_len
        return TextSpec(max_len=longest, vocab=known.size, classes=self.classes, tokenizer=known.fingerprint)

    def fetch(self) -> None:
        super().fetch()
        self.tokenizer.fetch()

    def _synthesise(self) -> None:
        self.tokenizer.write_synthetic()
        super()._synthesise()

    @property
    def reading(self) -> tuple[Any, ...]:
        return self.text and list(self.text), self.max_len, self.tokenizer.state

    def contents(self, part: Part, label: str) -> list[tuple[str, ...]]:
        columns = self.text or part.other_columns(label, self.names)
        if self.text is None and len(columns) != 1:
            raise UserError(
                f"{part.place} has the columns {', '.join(map(repr, part.table.features))} and none is named "
                f"{', '.join(self.names)}; name the text by data.text=<column>, or two by data.text=[<first>,<second>]."
            )
        return list(zip(*(_texts(part, column) for column in columns), strict=True))

    def tokens(self, contents: Sequence[Any], targets: np.ndarray, train: np.ndarray) -> tuple[Ragged, dict[str, Any]]:
        training_texts = chain.from_iterable(contents[i] for i in train)
        tokenizer, folder = self.tokenizer.opened(training_texts, f"text-custom-{self.cache_folder.name}")
        known = {"vocabulary": tokenizer.vocabulary.facts, "tokenizer": str(folder)}
        return self._laid_out(contents, targets, tokenizer), known

    def load(self) -> tuple[dict[str, Ragged], str]:
        self._warn_of_cuts(self._cache.splits["all"])
        return super().load()

    def further(self, contents: Sequence[Any], targets: np.ndarray, place: Path) -> Ragged:
        rows = self._laid_out(contents, targets, self._trained_tokenizer())
        self._warn_of_cuts(rows)
        return rows

    def portable_facts(self) -> dict[str, Any]:
        tokenizer = self._trained_tokenizer()
        return dict(self._facts) | {"tokenizer": tokenizer.saved if isinstance(tokenizer, Tokenizer) else BYTES}

    def _trained_tokenizer(self) -> Tokenizer | ByteTokenizer:
        """The tokenizer of the training texts. Raises UserError if it is missing or has changed."""
        kept, vocabulary = self._facts["tokenizer"], Vocabulary.from_facts(self._facts["vocabulary"])
        if kept == BYTES:
            return ByteTokenizer()
        if not isinstance(kept, str):
            return Tokenizer.restored(kept, vocabulary)
        if not Path(kept).is_dir():
            raise UserError(f"{kept}, the tokenizer of the training texts, is missing; restore it.")
        if (tokenizer := Tokenizer(Path(kept))).vocabulary != vocabulary:
            raise UserError(f"{kept} is another tokenizer than that of the training texts; restore it.")
        return tokenizer

    def _laid_out(self, contents: Sequence[Any], targets: np.ndarray, tokenizer: Tokenizer | ByteTokenizer) -> Ragged:
        first, *second = (list(column) for column in zip(*contents, strict=True))
        return lay_out(Labelled(first, second[0] if second else None, targets), tokenizer, self.max_len)

    def _warn_of_cuts(self, rows: Ragged) -> None:
        if full := int((rows.lengths == self.max_len).sum()):
            log.warning("%s of %s texts fill data.max_len=%s tokens and may be cut.", full, len(rows), self.max_len)

    @staticmethod
    def write_synthetic(folder: Path) -> None:
        """Writes train.csv with 60 rows in two classes that follow from a word."""
        words = np.random.default_rng(0).choice(["the", "a", "film", "plot", "very"], (60, 12))
        lines = [
            f'"{" ".join(row)}, {("dull", "great")[i % 2]} {i}",{("neg", "pos")[i % 2]}' for i, row in enumerate(words)
        ]
        (folder / "train.csv").write_text("\n".join(["text,label", *lines, ""]), encoding="utf-8")


def _texts(part: Part, column: str) -> list[str]:
    part.column(column, (), "text")
    if not sources.is_text(part.table, column):
        raise UserError(f"{part.place} has no text in the column {column}; choose another by data.text.")
    texts = list(part.table[column])
    if empty := [number for number, text in enumerate(texts, 1) if not (text and text.strip())]:
        raise UserError(
            f"{part.place}, row {empty[0]} has no text in the column {column} (such rows: {len(empty)}); delete them."
        )
    return texts
