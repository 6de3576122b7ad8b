"""Sentiment, question answering and paraphrase of GLUE: SST-2, QNLI and QQP (Wang et al. 2019)."""

from pathlib import Path
from typing import Any

from subquad.data import ragged
from subquad.data.synthetic import written_once
from subquad.data.text import glue_files
from subquad.data.text.glue_files import GlueName, Labelled
from subquad.data.text.sentences import SentenceData


class Glue(SentenceData):
    """SST-2 67,349 / 872 film review sentences, QNLI 104,743 / 5,463 question and sentence, QQP 363,846 / 40,430 pairs.

    Two classes each; results are those on the published dev rows, since the labels of test are hidden.

    name: sst2, qnli or qqp. folder: holds SST-2/train.tsv and its like, or sst2/train-*.parquet; `root`/glue unless
    given. `sentences` are the keys of `SentenceData`.
    """

    classes = 2

    def __init__(self, *, name: GlueName, root: str, folder: str | None = None, **sentences: Any) -> None:
        super().__init__(task=f"glue/{name}", root=root, **sentences)
        self.table = name
        self.folder = Path(folder) if folder else self.root / "glue"
        if self.synthetic:
            self.folder = self.root / "synthetic" / f"glue_{name}"

    def fetch(self) -> None:
        """Downloads the archive and the tokenizer unless they are here already."""
        super().fetch()
        if not self.synthetic and not glue_files.present(self.folder, self.table):
            glue_files.fetch(self.folder, self.table)

    def prepare_data(self) -> None:
        """Cuts the texts into tokens once; a second process meanwhile waits and finds them done."""
        if self.synthetic:
            written_once(self.folder, lambda target: self.write_synthetic(target, self.table))
        super().prepare_data()

    @property
    def source_state(self) -> str:
        """Changes with any of the files."""
        return ragged.state_of(path for paths in glue_files.files(self.folder, self.table).values() for path in paths)

    def texts(self) -> dict[str, Labelled]:
        """Train, and dev as `test`."""
        found = glue_files.files(self.folder, self.table)
        train, dev = (
            glue_files.read(found[split], self.table, split, not self.synthetic) for split in ("train", "dev")
        )
        return {"train": train, "test": dev}

    @staticmethod
    def write_synthetic(root: Path, name: GlueName = "sst2") -> Path:
        """Writes a few rows in the layout of the benchmark to `root`, and returns it, the `folder`."""
        return glue_files.write_synthetic(root, name)
