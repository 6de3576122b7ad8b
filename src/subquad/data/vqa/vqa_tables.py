"""Questions and annotations of VQA as arrays: images, texts and types of questions, and the scores of answers."""

import collections
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch.utils.data import Dataset

from subquad.data import ragged
from subquad.data.ragged import Ragged
from subquad.data.split_data import padded
from subquad.data.vqa.features import Features
from subquad.data.vqa.scoring import ANSWER_TYPES, Evaluator, normalise, references, soft_score
from subquad.data.vqa.vqa_files import Annotation, Question
from subquad.specs import VQABatch

_LEAST_COUNT = 9


class Column(IntEnum):
    """The columns of a row: image id, index of the question's text, answer type, question type."""

    IMAGE = 0
    TEXT = 1
    ANSWER_TYPE = 2
    QUESTION_TYPE = 3


def frequent_answers(chosen: Iterable[str]) -> list[str]:
    """The normalised answers of at least nine questions, the most frequent first."""
    counts = collections.Counter(map(normalise, chosen))
    return sorted((answer for answer, n in counts.items() if n >= _LEAST_COUNT), key=lambda a: (-counts[a], a))


def tabulate(
    name: str, pairs: Sequence[tuple[Question, Annotation]], answers: Sequence[str], texts: dict[str, int],
    question_types: Sequence[str], evaluator: Evaluator,
) -> dict[str, Ragged]:  # fmt: skip
    """Rows, soft targets (`<name>_soft`) and official scores (`<name>_official`); the targets of all are question ids.

    `answers` are the answers that can be predicted, in normalised form, which an evaluator does not change.
    """
    index = {answer: i for i, answer in enumerate(answers)}
    rows: list[tuple[int, ...]] = []
    soft: list[list[tuple[int, float]]] = []
    official: list[list[tuple[int, float]]] = []
    for question, annotation in pairs:
        kinds = ANSWER_TYPES.index(annotation.answer_type), question_types.index(annotation.question_type)
        rows.append((question.image_id, texts[question.text], *kinds))
        for scores, counts in (
            (soft, collections.Counter(map(normalise, annotation.answers))),
            (official, references(annotation.answers, evaluator)[0]),
        ):
            scores.append([(index[form], soft_score(n)) for form, n in counts.items() if form in index])
    ids = np.array([question.question_id for question, _ in pairs], np.int64)
    table = Ragged(np.array(rows, np.int64), np.arange(len(rows) + 1), ids)
    lists = {f"{name}_soft": soft, f"{name}_official": official}
    return {name: table} | {
        key: ragged.lay_out([np.array(entries, np.float32).reshape(-1, 2) for entries in scores], ids)
        for key, scores in lists.items()
    }


@dataclass(frozen=True, slots=True)
class VQASplit:
    """The questions of a split.

    rows: int64 [N, 4], see `Column`. soft, official: for each row the answers with a positive score, [k, 2] answer and
    score; `soft` for training, `official` for evaluation.
    """

    rows: np.ndarray
    soft: Ragged
    official: Ragged
    features: Features

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """All equal, because the size of an image is not known before its file is read.

        Validation then keeps the order of the file, in which questions on one image are adjacent, so that the image is
        read once per batch.
        """
        return np.full(len(self), self.features.limit, np.int64)

    @property
    def images(self) -> np.ndarray:
        """int64 [N]: the image of each question."""
        return self.rows[:, Column.IMAGE]

    def take(self, indices: np.ndarray) -> "VQASplit":
        """The questions of these indices."""
        return VQASplit(self.rows[indices], self.soft.take(indices), self.official.take(indices), self.features)

    def mean_score(self, guess: np.ndarray) -> float:
        """The official accuracy of the predictions `guess`, one answer for each row."""
        right = self.official.values[:, 0].astype(np.int64) == np.repeat(guess, self.official.lengths)
        return float(self.official.values[right, 1].sum(dtype=np.float64) / len(self))


class VQADataset(Dataset[VQABatch]):
    """Turns lists of indices into batches; an image with several questions is read once.

    texts: token ids or features of the questions, by index of the text.
    """

    def __init__(self, split: VQASplit, texts: Ragged, classes: int) -> None:
        self.split, self.texts, self.classes = split, texts, classes

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, indices: list[int]) -> VQABatch:
        rows = self.split.rows[indices]
        numbers = rows[:, Column.IMAGE].tolist()
        images = {number: self.split.features[number] for number in dict.fromkeys(numbers)}
        image, image_valid = padded([images[number] for number in numbers])
        question, question_valid = padded([self.texts[number] for number in rows[:, Column.TEXT].tolist()])
        return VQABatch(
            image=image, image_valid=image_valid, question=question, question_valid=question_valid,
            scores=self._dense(self.split.official, indices), target=self._dense(self.split.soft, indices),
            answer_type=torch.from_numpy(rows[:, Column.ANSWER_TYPE].copy()),
        )  # fmt: skip

    def _dense(self, scores: Ragged, indices: list[int]) -> torch.Tensor:
        dense = np.zeros((len(indices), self.classes), np.float32)
        for row, i in zip(dense, indices, strict=True):
            row[scores[i][:, 0].astype(np.int64)] = scores[i][:, 1]
        return torch.from_numpy(dense)
