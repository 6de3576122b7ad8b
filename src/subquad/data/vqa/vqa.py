"""VQA v2: questions on photographs of COCO, answered from a fixed list of answers.

Source: Goyal et al. 2017, https://arxiv.org/abs/1612.00837; features as Jiang et al. 2020 or OpenVQA.
"""

import dataclasses
import hashlib
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from subquad.data import ragged
from subquad.data.ragged import Ragged
from subquad.data.split_data import CachedData
from subquad.data.synthetic import written_once
from subquad.data.vqa import synthetic_vqa, vqa_files, vqa_text
from subquad.data.vqa.features import open_features
from subquad.data.vqa.scoring import Evaluator
from subquad.data.vqa.vqa_tables import Column, VQADataset, VQASplit, frequent_answers, tabulate
from subquad.specs import VQASpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed, Share

ANSWERS = 3129
"""The number of answers that occur more than eight times in train and val."""

_SPLITS = ("train2014", "val2014")


class VQAv2(CachedData):
    """443,757 training and 214,354 validation questions, 5 or 6 on each of 82,783 and 40,504 images.

    folder: the folder of questions and annotations, by default `root`/vqa_v2.
    features: the folder of image features, by default `folder`/features: `<split>/<image id>.pth`, `<split>/*.npz` or
    `<split>.h5`. image_len: maximum number of tokens of an image (608 cells or 100 regions). image_dim: their width.
    text: "words" uses word ids as in MCAN, with embeddings initialised from `glove`, a text file of vectors, if given;
    "albert" uses features of a frozen ALBERT, computed once; "albert_tuned" uses token ids of an ALBERT that the model
    trains. albert: the folder of the ALBERT, by default `folder`/albert. text_len: maximum number of tokens of a
    question. evaluator: "official" (of 2021), or the version in "openvqa".
    protocol: "paper" trains on train2014, validates and tests on val2014, and takes words and answers from both;
    "clean" holds out `val_fraction` of the training images by `split_seed` for validation, and takes words and answers
    from train2014 only. cases: the maximum number of questions of train2014 and of val2014, as complete images.
    synthetic: synthetic files in place of the published ones.
    """

    task = "vqa_v2"
    write_synthetic = staticmethod(synthetic_vqa.write)

    def __init__(
        self, *, root: str, folder: str | None = None, features: str | None = None, image_len: Count = 608,
        image_dim: Count = 2048, text: Literal["words", "albert", "albert_tuned"] = "words", text_len: Count = 14,
        albert: str | None = None, glove: str | None = None, evaluator: Evaluator = "official",
        protocol: Literal["paper", "clean"] = "paper", val_fraction: Share = 0.1, split_seed: Seed = 42,
        cases: Count | None = None, synthetic: bool = False, **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        if text_len < 3:
            raise UserError(f"data.text_len is {text_len}; a question has at least 3 tokens.")
        if glove and text != "words":
            raise UserError("data.glove has no effect on ALBERT's tokens; choose data.text=words, or leave it out.")
        self.root, self.synthetic = Path(root), synthetic
        self.folder = self._source(folder, "vqa_v2", "vqa_v2")
        self.features = Path(features) if features else self.folder / "features"
        self.albert = Path(albert) if albert else self.folder / "albert"
        if synthetic:
            self.features, self.albert = self.folder / "features", self.root / "synthetic" / "albert"
        self.image_len, self.image_dim, self.text, self.text_len = image_len, image_dim, text, text_len
        self.glove, self.evaluator = Path(glove) if glove else None, evaluator
        self.protocol, self.val_fraction, self.split_seed = protocol, val_fraction, split_seed
        self.cases = cases

    @property
    def spec(self) -> VQASpec:
        facts = self._cache.facts
        spec = VQASpec(
            image_len=self.image_len, image_dim=self.image_dim, text_len=self.text_len, classes=len(facts["answers"])
        )
        if self.text == "albert":
            return dataclasses.replace(spec, text_dim=self._albert["width"])
        if self.text == "albert_tuned":
            return dataclasses.replace(spec, vocab=self._albert["vocab"], albert=str(self.albert))
        vocab = vqa_text.UNKNOWN + 1 + len(facts["words"])
        vectors = self._cache.splits.get("vectors")
        initial = None if vectors is None else torch.from_numpy(np.array(vectors.values))
        return dataclasses.replace(spec, vocab=vocab, word_vectors=initial)

    def fetch(self) -> None:
        """Downloads questions and annotations unless they exist; the user must provide features and ALBERT."""
        if not self.synthetic:
            vqa_files.fetch(self.folder)

    def require(self) -> None:
        super().require()
        for split in _SPLITS:
            open_features(self.features, split, self.image_dim, self.image_len)

    def prepare_data(self) -> None:
        """Reads questions and annotations once, and computes features of questions for text="albert"."""
        super().prepare_data()
        if self.text == "albert":
            with tempfile.TemporaryDirectory(prefix=".albert-", dir=self.cache_folder.parent) as scratch:
                vqa_text.embed(self.albert, self._cache.splits["texts"], self._albert_folder, Path(scratch))

    def _synthesise(self) -> None:
        super()._synthesise()
        if self.text != "words":
            written_once(self.albert, synthetic_vqa.write_albert)

    def load(self) -> tuple[dict[str, VQASplit], str]:
        train, test = (self._open(split) for split in _SPLITS)
        splits = {"train": train, "val": test, "test": test}
        if self.protocol == "clean":
            images = np.random.default_rng(self.split_seed).permutation(np.unique(train.images))
            held_out = np.isin(train.images, images[: max(1, round(self.val_fraction * len(images)))])
            if held_out.all():
                raise UserError("There is no image left to train on; raise limits.cases or lower data.val_fraction.")
            splits |= {"train": train.take(np.flatnonzero(~held_out)), "val": train.take(np.flatnonzero(held_out))}
        parts = [self._cache.fingerprint, train.features.fingerprint, test.features.fingerprint]
        if self.text != "words":
            parts.append(self._albert["digest"])
        return splits, hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]

    def batched(self, split: str) -> "VQADataset":
        if self.text == "albert":
            cache = ragged.read_prepared(self._albert_folder, "vqa_v2")
            return VQADataset(self.splits[split], cache.splits["features"], self.spec.classes)
        return VQADataset(self.splits[split], self._cache.splits["texts"], self.spec.classes)

    def baselines(self) -> dict[str, float]:
        """The official accuracy of the best constant answer, and of the best answer for each type of question."""
        train, test = self.splits["train"], self.splits["test"]
        scores = np.zeros((len(self._cache.facts["question_types"]), self.spec.classes))
        types = np.repeat(train.rows[:, Column.QUESTION_TYPE], train.soft.lengths)
        np.add.at(scores, (types, train.soft.values[:, 0].astype(np.int64)), train.soft.values[:, 1])
        common = int(scores.sum(0).argmax())
        of_type = np.where(scores.any(1), scores.argmax(1), common)
        guesses = {
            f'always "{self._cache.facts["answers"][common]}"': np.full(len(test), common),
            "most common of the question type": of_type[test.rows[:, Column.QUESTION_TYPE]],
        }
        return {name: test.mean_score(guess) for name, guess in guesses.items()}

    @cached_property
    def cache_folder(self) -> Path:
        sources = vqa_files.files(self.folder)
        if self.glove and not self.glove.is_file():
            raise UserError(f"{self.glove} is missing; set data.glove to a text file of GloVe vectors, or to null.")
        sources += [self.glove] if self.glove else []
        settings = (self.text, self.text_len, self.protocol, self.evaluator, self.text != "words" and self._albert)
        digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:8]
        return self.root / "cache" / "vqa_v2" / f"{ragged.state_of(sources)}-{digest}"

    @property
    def _albert_folder(self) -> Path:
        return self.cache_folder.with_name(f"{self.cache_folder.name}-features")

    @cached_property
    def _albert(self) -> dict[str, Any]:
        return vqa_text.albert_facts(self.albert)

    def _open(self, split: str) -> VQASplit:
        features = open_features(self.features, split, self.image_dim, self.image_len)
        # Copied to memory (a few dozen bytes per question), because slices of memory-mapped arrays are slow.
        rows, soft, official = (
            dataclasses.replace(table, values=np.array(table.values))
            for table in (self._cache.splits[f"{split}{kind}"] for kind in ("", "_soft", "_official"))
        )
        questions = VQASplit(rows.values, soft, official, features)
        if self.cases is not None and self.cases < len(questions):
            images, index = np.unique(questions.images, return_inverse=True)
            shuffled = np.random.default_rng([self.split_seed, split == "val2014"]).permutation(len(images))
            questions = questions.take(np.sort(np.argsort(shuffled[index], kind="stable")[: self.cases]))
        features.require(questions.images.tolist())
        return questions

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        pairs = {split: vqa_files.read_split(self.folder, split, not self.synthetic) for split in _SPLITS}
        sources = _SPLITS if self.protocol == "paper" else _SPLITS[:1]  # of the lists of answers and words
        source_pairs = [pair for split in sources for pair in pairs[split]]
        answers = frequent_answers(annotation.chosen for _, annotation in source_pairs)
        if self.protocol == "paper" and not self.synthetic and len(answers) != ANSWERS:
            raise UserError(
                f"The annotations in {self.folder} give {len(answers)} answers more than 8 times where {ANSWERS} are "
                "expected; delete and fetch them again."
            )
        vocabulary = sorted({word for question, _ in source_pairs for word in vqa_text.words(question.text)})
        questions = sorted({question.text for split in _SPLITS for question, _ in pairs[split]})
        if self.text == "words":
            tokens = vqa_text.word_ids(questions, vocabulary, self.text_len)
        else:
            tokens = vqa_text.albert_ids(self.albert, questions, self.text_len)
        order = sorted(range(len(questions)), key=lambda i: (len(tokens[i]), questions[i]))
        index = {questions[i]: position for position, i in enumerate(order)}
        types = sorted({annotation.question_type for split in _SPLITS for _, annotation in pairs[split]})
        tables = {"texts": ragged.lay_out([tokens[i] for i in order], np.zeros(len(order), np.int64))}
        if self.glove:
            vectors = vqa_text.glove(self.glove, vocabulary)
            tables["vectors"] = Ragged(vectors, np.array([0, len(vectors)]), np.zeros(1, np.int64))
        for split in _SPLITS:
            tables |= tabulate(split, pairs[split], answers, index, types, self.evaluator)
        return tables, {"answers": answers, "words": vocabulary, "question_types": types}
