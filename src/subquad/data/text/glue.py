"""Three tasks of GLUE (Wang et al. 2019): SST-2 (sentiment), QNLI (question answering) and QQP (paraphrases)."""

from pathlib import Path
from typing import Any

from subquad.data import ragged
from subquad.data.synthetic import written_once
from subquad.data.text import glue_files
from subquad.data.text.glue_files import GlueName, Labelled
from subquad.data.text.sentences import SentenceData


class Glue(SentenceData):
    """A task of GLUE with two classes, tested on the published dev rows because test labels are not public.

    Rows of train and dev: SST-2 67,349 / 872 sentences of film reviews; QNLI 104,743 / 5,463 pairs of a question and a
    sentence; QQP 363,846 / 40,430 pairs of questions.

    name: sst2, qnli or qqp. folder: contains files such as SST-2/train.tsv or sst2/train-*.parquet; by default
    `root`/glue. `sentences` are arguments of `SentenceData`.
    """

    classes = 2

    def __init__(self, *, name: GlueName, root: str, folder: str | None = None, **sentences: Any) -> None:
        super().__init__(task=f"glue/{name}", root=root, **sentences)
        self.table = name
        self.folder = Path(folder) if folder else self.root / "glue"
        if self.synthetic:
            self.folder = self.root / "synthetic" / f"glue_{name}"

    def fetch(self) -> None:
        """Downloads the archive and the tokenizer unless they exist."""
        super().fetch()
        if not self.synthetic and not glue_files.present(self.folder, self.table):
            glue_files.fetch(self.folder, self.table)

    def prepare_data(self) -> None:
        """Tokenises the texts once; other processes wait."""
        if self.synthetic:
            written_once(self.folder, lambda target: self.write_synthetic(target, self.table))
        super().prepare_data()

    @property
    def source_state(self) -> str:
        """A hash that changes with any of the files."""
        return ragged.state_of(path for paths in glue_files.files(self.folder, self.table).values() for path in paths)

    def texts(self) -> dict[str, Labelled]:
        """The rows of train, and those of dev as `test`."""
        paths = glue_files.files(self.folder, self.table)
        train, dev = (
            glue_files.read(paths[split], self.table, split, not self.synthetic) for split in ("train", "dev")
        )
        return {"train": train, "test": dev}

    @staticmethod
    def write_synthetic(root: Path, name: GlueName = "sst2") -> Path:
        """Writes a few rows in the layout of the benchmark to `root`, and returns it for use as `folder`."""
        return glue_files.write_synthetic(root, name)
