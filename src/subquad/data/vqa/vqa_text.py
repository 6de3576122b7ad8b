"""Questions of VQA as tokens: words as in MCAN, with or without GloVe vectors, or the tokens or features of an ALBERT.

Sources: MILVLG/openvqa (2021-09), vqa_loader.py; Lan et al. 2020, https://arxiv.org/abs/1909.11942.
"""

import errno
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from subquad.blocks.albert import open_albert
from subquad.data import ragged
from subquad.data.parallel import progress
from subquad.data.ragged import Ragged
from subquad.data.split_data import padded
from subquad.utils.errors import UserError, first_line

UNKNOWN = 1
"""The id of a word outside the vocabulary; 0 is padding, and the words of the vocabulary start at 2."""

_DROPPED = str.maketrans("-/", "  ", ".,'!?\"()*#:;")
_ALBERT_FILES = ("config.json", "model.safetensors")
_TOKENIZER_FILES = ("tokenizer.json", "spiece.model")
_BATCH_SIZE = 256


def words(question: str) -> list[str]:
    """The words of a question in lower case, without most punctuation, split at spaces, hyphens and slashes."""
    return question.lower().translate(_DROPPED).split()


def word_ids(questions: Iterable[str], vocabulary: Sequence[str], length: int) -> list[np.ndarray]:
    """The ids of at most `length` words of each question; a question without words becomes one unknown word."""
    known = {word: i for i, word in enumerate(vocabulary, UNKNOWN + 1)}
    return [
        np.array([known.get(word, UNKNOWN) for word in words(question)[:length]] or [UNKNOWN], np.int32)
        for question in questions
    ]


def glove(path: Path, vocabulary: Sequence[str], dim: int = 300) -> np.ndarray:
    """float32 [UNKNOWN + 1 + words, dim]: the vectors of a text file of GloVe, 0 for words that it does not have.

    Raises UserError for a file of another format, and if it has none of the words.
    """
    known = {word: i for i, word in enumerate(vocabulary, UNKNOWN + 1)}
    vectors = np.zeros((UNKNOWN + 1 + len(vocabulary), dim), np.float32)
    matches = 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                word, *numbers = line.rstrip("\n").rsplit(" ", dim)
                if len(numbers) != dim:
                    raise ValueError(f"a line of {len(numbers)} numbers where {dim} are expected")
                if word in known:
                    vectors[known[word]] = np.array(numbers, np.float32)
                    matches += 1
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} holds no word vectors that can be read ({error}); set data.glove to the text file of GloVe's "
            f"{dim}-dimensional vectors (https://nlp.stanford.edu/projects/glove), or to null to learn them."
        ) from None
    if not matches:
        raise UserError(f"{path} has a vector for none of the {len(known):,} words of the questions; set data.glove.")
    return vectors


def albert_files(folder: Path) -> list[Path]:
    """The configuration, weights and tokenizer of an ALBERT. Raises UserError, with instructions, if one is missing."""
    paths = [folder / name for name in (*_ALBERT_FILES, *_TOKENIZER_FILES) if (folder / name).is_file()]
    names = {path.name for path in paths}
    if not names.issuperset(_ALBERT_FILES) or not names.intersection(_TOKENIZER_FILES):
        raise UserError(
            f"{folder} holds no ALBERT; put config.json, model.safetensors and tokenizer.json (or spiece.model) of "
            "https://huggingface.co/albert/albert-base-v2 there, set data.albert, or choose data.text=words."
        )
    return paths


def albert_facts(folder: Path) -> dict[str, Any]:
    """The `width` of an ALBERT's features, the size of its vocabulary (`vocab`) and the `digest` of all its files."""
    digest = hashlib.sha256()
    for path in albert_files(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        sizes = {"width": int(config["hidden_size"]), "vocab": int(config["vocab_size"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} describes no ALBERT ({error}); take the published file.") from None
    return sizes | {"digest": digest.hexdigest()[:16]}


def albert_ids(folder: Path, questions: Sequence[str], length: int) -> list[np.ndarray]:
    """The ids of at most `length` tokens of each question, including [CLS] and [SEP]."""
    from transformers import AutoTokenizer  # takes seconds

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        rows = tokenizer(list(questions), truncation=True, max_length=length)["input_ids"]
    except Exception as error:  # the library's parser raises bare exceptions
        raise UserError(
            f"{folder} holds no tokenizer that can be read ({first_line(error)}); take the published files."
        ) from None
    return [np.array(ids, np.int32) for ids in rows]


def embed(folder: Path, questions: Ragged, target: Path, scratch: Path) -> None:
    """Writes the last hidden states of a frozen ALBERT for each question to `target`: float16, one row per token.

    Sorting `questions` by length saves time. Features are first written to a file in `scratch` to save memory.
    """
    ragged.prepare(target, lambda: _features(folder, questions, scratch / "features"))


def _features(folder: Path, questions: Ragged, path: Path) -> tuple[dict[str, Ragged], dict[str, Any]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = open_albert(folder).eval().to(device)
    width = int(model.config.hidden_size)
    try:
        with path.open("wb") as file, torch.no_grad(), progress("features of questions", len(questions)) as done:
            for start in range(0, len(questions), _BATCH_SIZE):
                rows = [np.asarray(questions[i]) for i in range(start, min(start + _BATCH_SIZE, len(questions)))]
                ids, mask = padded(rows)
                valid = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
                hidden = model(input_ids=ids.to(device), attention_mask=valid.to(device)).last_hidden_state
                hidden[valid.to(device)].to(torch.float16).cpu().numpy().tofile(file)
                done(start + len(rows))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, None):
            raise UserError(f"The disk is full: {path} could not be written; free some space and try again.") from None
        raise
    values = np.memmap(path, np.float16, "r", shape=(int(questions.offsets[-1]), width))
    return {"features": Ragged(values, questions.offsets, questions.targets)}, {"width": width}
