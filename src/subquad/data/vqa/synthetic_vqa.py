"""Synthetic questions on images, in the raw formats of VQA v2, of grid features and of an ALBERT."""

import collections
import json
import string
from pathlib import Path

import numpy as np
import torch

from subquad.data.vqa import vqa_files

IMAGES = {"train2014": 30, "val2014": 12}
_COLOURS = ("red", "blue", "green")
_NUMBERS = (("1", "one"), ("2", "two"), ("3", "three"))
_GRIDS = ((3, 4), (4, 3), (2, 5), (4, 4))
_CHANNELS = 2048
_QUESTIONS = (
    "What color is the dog?", "Is the dog red?", "How many dogs are there?", "Is there a t-shirt, on the dog?",
)  # fmt: skip


def write(folder: Path) -> Path:
    """Writes 30 training and 12 validation images with four questions each to `folder`, and returns it."""
    for number, (split, images) in enumerate(IMAGES.items()):
        ids = [1 + 3 * i + number for i in range(images)]
        _write_texts(folder, split, ids)
        _write_grids(folder / "features" / split, ids)
    return folder


def _answers(image: int, question: int) -> tuple[str, tuple[str, ...]]:
    """The answer type, and the spellings of the correct answer."""
    colour, number = _COLOURS[image // 3 % 3], _NUMBERS[image // 3 % 5 % 3]
    match question:
        case 0:
            return "other", (colour, colour.capitalize(), f"{colour}.")
        case 1:
            return "yes/no", ("yes" if colour == "red" else "no",)
        case 2:
            return "number", number
    return "yes/no", ("yes" if image // 3 % 2 else "no",)


def _write_texts(folder: Path, split: str, images: list[int]) -> None:
    rng = np.random.default_rng(len(images))
    questions, annotations = [], []
    for image in images:
        for number, text in enumerate(_QUESTIONS):
            kind, spellings = _answers(image, number)
            right = 10 if image % 4 == 0 else int(rng.integers(6, 10))
            answers = [spellings[-1] if right == 10 else str(rng.choice(spellings)) for _ in range(right)]
            answers += [str(rng.choice(["yes", "no", "maybe"])) for _ in range(10 - len(answers))]
            place = {"question_id": 1000 * image + number, "image_id": image}
            questions.append({**place, "question": text})
            annotations.append(
                {
                    **place,
                    "question_type": " ".join(text.lower().split()[:2]),
                    "answer_type": kind,
                    "multiple_choice_answer": collections.Counter(answers).most_common(1)[0][0],
                    "answers": [
                        {"answer": answer, "answer_confidence": "yes", "answer_id": i}
                        for i, answer in enumerate(answers, 1)
                    ],
                }
            )
    about = {
        "info": {"description": "synthetic data in the format of VQA v2"},
        "license": {"name": "none"},
        "data_subtype": split,
    }
    for path, entries in (
        (vqa_files.questions_file(folder, split), {"questions": questions}),
        (vqa_files.annotations_file(folder, split), {"annotations": annotations}),
    ):
        path.write_text(json.dumps(about | entries), encoding="utf-8")


def _write_grids(folder: Path, images: list[int]) -> None:
    """Writes one tensor [1, 2048, height, width] per image, of various sizes; some channels encode the answers."""
    folder.mkdir(parents=True)
    for image in images:
        rng = np.random.default_rng(image)
        height, width = _GRIDS[image % len(_GRIDS)]
        grid = rng.random((1, _CHANNELS, height, width), np.float32) * 0.1
        for channel in (image // 3 % 3, 3 + image // 3 % 5 % 3, 6 + image // 3 % 2):
            grid[0, 64 * channel : 64 * (channel + 1), height // 2, width // 2] += 2
        torch.save(torch.from_numpy(grid), folder / f"{image}.pth")


def write_albert(folder: Path) -> None:
    """Writes a tiny ALBERT with random weights and a tokenizer of letters and a few words, in Hugging Face's format."""
    from transformers import AlbertConfig, AlbertModel, AlbertTokenizer, utils

    utils.logging.disable_progress_bar()
    special = [(token, 0.0) for token in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    letters = [(letter, -6.0) for letter in f"▁{string.ascii_lowercase}?,-"]
    known = sorted({word.strip("?,") for text in _QUESTIONS for word in text.lower().split()})
    vocabulary = [*special, *letters, *((f"▁{word}", -2.0) for word in known if len(word) > 1 and "-" not in word)]
    AlbertTokenizer(vocab=vocabulary).save_pretrained(str(folder))
    config = AlbertConfig(
        vocab_size=len(vocabulary), embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AlbertModel(config).save_pretrained(str(folder))
