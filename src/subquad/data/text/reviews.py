"""Sentiment of tokenised film reviews (IMDB, Maas et al. 2011)."""

import sys
from typing import Any

import numpy as np

from subquad.data.ragged import Ragged
from subquad.data.text.byte_text import ByteText
from subquad.data.text.glue_files import Labelled
from subquad.data.text.sentences import SentenceData


class Reviews(SentenceData):
    """25,000 training and 25,000 test reviews, the rows of the byte-level Text task.

    source: the archive aclImdb_v1.tar.gz or the folder aclImdb unpacked from it; by default
    `root`/imdb/aclImdb_v1.tar.gz. `sentences` are arguments of `SentenceData`.
    """

    classes = 2

    def __init__(self, *, root: str, source: str | None = None, **sentences: Any) -> None:
        super().__init__(task="text/imdb", root=root, **sentences)
        self.raw = ByteText(
            root=root, source=source, max_len=sys.maxsize, synthetic=self.synthetic, batch_size=1, seed=self.seed
        )

    def fetch(self) -> None:
        super().fetch()
        self.raw.fetch()

    def prepare_data(self) -> None:
        self.raw.prepare_data()
        super().prepare_data()

    @property
    def source_state(self) -> str:
        return self.raw.cache_folder.name

    def texts(self) -> dict[str, Labelled]:
        """The reviews, decoded from their bytes."""
        return {name: _read(self.raw.splits[name]) for name in ("train", "test")}

    write_synthetic = staticmethod(ByteText.write_synthetic)


def _read(rows: Ragged) -> Labelled:
    texts = [np.asarray(rows[i] - 1, np.uint8).tobytes().decode() for i in range(len(rows))]
    return Labelled(texts, None, rows.targets)
