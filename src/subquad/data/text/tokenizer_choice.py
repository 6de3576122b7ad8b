"""The choice of tokenizer for a text: a published one, the user's own, or one trained on the text."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from subquad.data import ragged
from subquad.data.text.tokenizer import (
    BYTES,
    ByteTokenizer,
    Tokenizer,
    fetch_tokenizer,
    synthetic_tokenizer,
    tokenizer_folder,
    train_tokenizer,
    write_synthetic_tokenizer,
)
from subquad.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class TokenizerChoice:
    """The settings `data.tokenizer` and `data.vocab` of a task.

    name: the folder or name of a tokenizer, or "bytes"; None trains one of `vocab` entries on the text. root: the data
    folder with downloaded and trained tokenizers. synthetic: uses a synthetic tokenizer in place of a published one.
    """

    task: str
    name: str | None
    vocab: int
    root: Path
    synthetic: bool = False

    def fetch(self) -> None:
        """Downloads a published tokenizer unless it exists."""
        if self.name not in (None, BYTES) and not self.synthetic:
            fetch_tokenizer(self.name, self.root)

    def write_synthetic(self) -> None:
        """Writes the synthetic tokenizer if it replaces a published one."""
        if self.name not in (None, BYTES) and self.synthetic:
            write_synthetic_tokenizer(self._place)

    @property
    def state(self) -> tuple[bool, int | str]:
        """(True, size) of a tokenizer trained on the text, else (False, hash of the files); for naming caches.

        Raises UserError if the files are missing.
        """
        if self.name is None:
            return True, self.vocab
        if self.name == BYTES:
            return False, BYTES
        if not self._place.is_dir():
            raise UserError(
                f"{self._place} is missing; run `python scripts/prepare.py task={self.task} data.tokenizer={self.name}`"
                ", or put the tokenizer's files there."
            )
        return False, ragged.state_of(sorted(self._place.iterdir()))

    def opened(self, texts: Iterable[str], mark: str) -> tuple[Tokenizer | ByteTokenizer, Path | str]:
        """The tokenizer and its folder or name; one that is trained on `texts` gets a folder name with suffix `mark`.

        Raises UserError if it is unsuitable for masked language models.
        """
        if self.name == BYTES:
            return ByteTokenizer(), BYTES
        trained = self.root / "tokenizers" / f"bpe-{self.vocab}-{mark}"
        folder = train_tokenizer(texts, self.vocab, trained) if self.name is None else self._place
        return Tokenizer(folder), folder

    @property
    def _place(self) -> Path:
        assert self.name is not None
        return (synthetic_tokenizer if self.synthetic else tokenizer_folder)(self.name, self.root)
