"""Three tasks of GLUE (Wang et al. 2019): SST-2 (sentiment), QNLI (question answering) and QQP (paraphrases)."""

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
        self.folder = self._source(folder, "glue", f"glue_{name}")

    def fetch(self) -> None:
        super().fetch()
        if not self.synthetic and not glue_files.present(self.folder, self.table):
            glue_files.fetch(self.folder, self.table)

    def _synthesise(self) -> None:
        super()._synthesise()
        written_once(self.folder, lambda target: glue_files.write_synthetic(target, self.table))

    @property
    def source_state(self) -> str:
        return ragged.state_of(path for paths in glue_files.files(self.folder, self.table).values() for path in paths)

    def texts(self) -> dict[str, Labelled]:
        """The rows of train, and those of dev as `test`."""
        paths = glue_files.files(self.folder, self.table)
        train, dev = (
            glue_files.read(paths[split], self.table, split, not self.synthetic) for split in ("train", "dev")
        )
        return {"train": train, "test": dev}
