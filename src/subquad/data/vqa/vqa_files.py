"""Reads the published questions and annotations of VQA v2.

Source: Goyal et al. 2017, https://arxiv.org/abs/1612.00837; https://visualqa.org/download.html.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.data.archives import fetch_files
from subquad.data.vqa.scoring import ANNOTATORS, ANSWER_TYPES
from subquad.utils.errors import UserError, first_line

COUNTS = {"train2014": (443_757, 82_783), "val2014": (214_354, 40_504), "test2015": (447_793, 81_434)}
"""The number of questions of each split and of their images."""

_ADDRESS = "https://s3.amazonaws.com/cvmlp/vqa/mscoco/vqa/"
_ARCHIVES = {
    "v2_OpenEnded_mscoco_train2014_questions.json": (
        "v2_Questions_Train_mscoco.zip", "05a64b6e2582d06d7585f5429674a9a33851878be1bff9f8668cdcf792df611e"),
    "v2_OpenEnded_mscoco_val2014_questions.json": (
        "v2_Questions_Val_mscoco.zip", "e71f6c5c3e97a51d050f28243e262b28cd0c48d11a6b4632d769d30d3f93222a"),
    "v2_mscoco_train2014_annotations.json": (
        "v2_Annotations_Train_mscoco.zip", "fb101bcefe91422c543c2bb6d70af11eb3119d0ff745ae283d09acdf66250853"),
    "v2_mscoco_val2014_annotations.json": (
        "v2_Annotations_Val_mscoco.zip", "0caae7c8d1dafd852727f5ac046bc1efca9b72026bd6ffa34fc489f3a7b3291e"),
}  # fmt: skip
"""File, archive and its SHA-256 as ParlAI records it (facebookresearch/ParlAI, parlai/tasks/vqa_v2/build.py)."""


@dataclass(frozen=True, slots=True)
class Question:
    """One entry of a questions file."""

    question_id: int
    image_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """One entry of an annotations file: `chosen`, the most common answer, and the answers of the ten annotators."""

    question_id: int
    image_id: int
    question_type: str
    answer_type: str
    chosen: str
    answers: tuple[str, ...]


def questions_file(folder: Path, split: str) -> Path:
    """The path of the questions of a split."""
    return folder / f"v2_OpenEnded_mscoco_{split}_questions.json"


def annotations_file(folder: Path, split: str) -> Path:
    """The path of the annotations of a split."""
    return folder / f"v2_mscoco_{split}_annotations.json"


def files(folder: Path) -> list[Path]:
    """The four files of train and val. Raises UserError, with instructions, when one is missing."""
    paths = [folder / name for name in _ARCHIVES]
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"{path} is missing; run `python scripts/prepare.py task=vqa_v2`, or unpack "
                f"{_ADDRESS}{_ARCHIVES[path.name][0]} in {folder}."
            )
    return paths


def read_questions(folder: Path, split: str, genuine: bool = True) -> list[Question]:
    """The questions in the order of the file.

    Raises UserError for a file that is damaged or has another format, and if `genuine` also for other numbers of
    questions or images than the published ones.
    """
    path = questions_file(folder, split)
    questions: list[Question] = _entries(path, "questions", Question)
    counts = len(questions), len({question.image_id for question in questions})
    if genuine and counts != COUNTS[split]:
        expected = "{:,} on {:,}".format(*COUNTS[split])
        raise UserError(
            f"{path} holds {counts[0]:,} questions on {counts[1]:,} images where {expected} are expected; fetch it "
            "again."
        )
    if len({question.question_id for question in questions}) < len(questions):
        raise UserError(f"{path} holds a question twice; use the published one.")
    return questions


def read_split(folder: Path, split: str, genuine: bool = True) -> list[tuple[Question, Annotation]]:
    """The questions with their annotations, in the order of the questions.

    Raises UserError if the two files do not fit together, or if a question has fewer than ten answers.
    """
    questions = read_questions(folder, split, genuine)
    path = annotations_file(folder, split)
    entries: list[Annotation] = _entries(path, "annotations", Annotation)
    annotations = {annotation.question_id: annotation for annotation in entries}
    if len(annotations) != len(entries) or annotations.keys() != {question.question_id for question in questions}:
        raise UserError(
            f"{path} does not annotate the {len(questions):,} questions of {questions_file(folder, split).name}, each "
            "once; take both from the same release."
        )
    pairs = [(question, annotations[question.question_id]) for question in questions]
    for question, annotation in pairs:
        if question.image_id != annotation.image_id:
            raise UserError(
                f"Question {question.question_id} is about image {question.image_id} in one file of {split} and "
                f"{annotation.image_id} in the other; take both from the same release."
            )
        if len(annotation.answers) != ANNOTATORS or annotation.answer_type not in ANSWER_TYPES:
            raise UserError(
                f"Question {question.question_id} in {path} has {len(annotation.answers)} answers of type "
                f'"{annotation.answer_type}" where {ANNOTATORS} of yes/no, number or other are expected; fetch it '
                "again."
            )
    return pairs


def _entries(path: Path, key: str, kind: type) -> list[Any]:
    try:
        with path.open(encoding="utf-8") as file:
            entries = json.load(file, object_hook=_compact)[key]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); use the published one.") from None
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
        raise UserError(f"{path} is damaged ({reason}); use the published one.") from None
    except (KeyError, TypeError):
        raise UserError(f"{path} holds no {key} of VQA v2; put the published file there.") from None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, kind) for entry in entries):
        raise UserError(f"{path} holds no {key} of VQA v2; put the published file there.")
    return entries


def _compact(entry: dict[str, Any]) -> Any:
    """Reduces a JSON object to its needed values; the 4.4 million answers would otherwise take gigabytes.

    Raises KeyError or TypeError for a value that is missing or of another type.
    """
    if "answer_id" in entry:
        return sys.intern(entry["answer"])
    if "question" in entry:
        return Question(_whole(entry["question_id"]), _whole(entry["image_id"]), _text(entry["question"]))
    if "multiple_choice_answer" in entry:
        return Annotation(
            _whole(entry["question_id"]), _whole(entry["image_id"]), sys.intern(entry["question_type"]),
            sys.intern(entry["answer_type"]), sys.intern(entry["multiple_choice_answer"]),
            tuple(_text(answer) for answer in entry["answers"]),
        )  # fmt: skip
    return entry


def _whole(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:  # tables hold 64 bits
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def fetch(folder: Path) -> None:
    """Downloads and checks the archives whose files are missing. Raises UserError when that fails."""
    for name, (archive, sha256) in _ARCHIVES.items():
        if not (folder / name).exists():
            fetch_files(name, _ADDRESS + archive, f"sha256:{sha256}", folder, {name: folder / name})
