"""The user's own labelled rows: classes, splits, and rows that occur more than once."""

import hashlib
import logging
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from subquad.data.ragged import Cache
from subquad.data.sampling import proportional, some
from subquad.utils.display import counted
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

Kind = Literal["classification", "regression"]

SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Names that folders and data sets give to the three splits."""


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Labelled rows of all splits in the order of their files.

    splits: train, val or test of each row. labels: of any type; None where one is missing. digests: equal for rows of
    equal content. where: the place of row i, for messages.
    """

    splits: Sequence[str]
    labels: Sequence[Any]
    digests: Sequence[str]
    where: Callable[[int], str]
    column: str = "label"

    def targets(self, kind: Kind) -> tuple[np.ndarray, list[str]]:
        """float32 [N] and no classes, or class numbers int64 [N] and the sorted classes of the training rows.

        Raises UserError, with the place, for a missing label, one that is no number, and a class without training rows.
        """
        # Composed, because macOS and zip files write the accents of a folder's name differently.
        words = ["" if label is None else unicodedata.normalize("NFC", str(label)).strip() for label in self.labels]
        for i, word in enumerate(words):
            if not word or word == "nan":
                raise UserError(f"{self.where(i)} has no value in the column {self.column}; add it, or delete the row.")
        numbers = [_number(word) for word in words]
        if kind == "regression":
            wrong = next((i for i, number in enumerate(numbers) if not math.isfinite(number)), None)
            if wrong is not None:
                raise UserError(
                    f"{self.where(wrong)} has {words[wrong]!r} in the column {self.column}, which is no finite number; "
                    "correct it, or set data.kind=classification."
                )
            return np.array(numbers, np.float32), []
        return self._numbered(words, numbers)

    def _numbered(self, words: list[str], numbers: list[float]) -> tuple[np.ndarray, list[str]]:
        if all(map(math.isfinite, numbers)):
            if real := [i for i, number in enumerate(numbers) if number != int(number)]:
                raise UserError(
                    f"{self.where(real[0])} has {words[real[0]]} in the column {self.column}, which is no class; for "
                    "numbers set data.kind=regression."
                )
            names = [str(int(Decimal(word))) for word in words]  # float would make two long numbers one
            spelt = dict(zip(names, words, strict=True))
            for name, word in zip(names, words, strict=True):
                if spelt[name] != word:
                    log.warning("The labels %s and %s are read as one class, %s.", word, spelt[name], name)
                    break
            words = names
        training = [word for word, split in zip(words, self.splits, strict=True) if split == "train"]
        classes = sorted(set(training), key=lambda word: (_number(word) if word.lstrip("-").isdigit() else 0, word))
        number_of = {word: number for number, word in enumerate(classes)}
        if unknown := [i for i, word in enumerate(words) if word not in number_of]:
            raise UserError(
                f"{self.where(unknown[0])} has the class {words[unknown[0]]}, of which there is no training row "
                f"({len(unknown)} rows of such classes); add some, or delete these."
            )
        if len(classes) < 2:
            raise UserError(f"All {len(training)} training rows have the class {classes[0]}; at least two are needed.")
        if len(classes) > max(2, len(training) // 2):
            raise UserError(
                f"{len(training)} training rows have {len(classes)} classes (such as {classes[0]} and {classes[1]}), "
                f"too many to learn; choose another column than {self.column}, or set data.kind=regression."
            )
        return np.array([number_of[word] for word in words], np.int64), classes

    def notes(self, targets: np.ndarray, members: dict[str, np.ndarray], classes: Sequence[str]) -> list[str]:
        """Sentences on what makes a result doubtful.

        These are classes that differ in capital letters only, classes without a test row, and rows of equal content
        that are in two splits or have two targets.
        """
        sentences = []
        spelt: dict[str, str] = {}
        for name in classes:
            if (other := spelt.setdefault(name.casefold(), name)) != name:
                sentences.append(f"{other} and {name} are two classes; if they are one, write them alike.")
        tested = set(targets[members["test"]])
        if untested := [name for number, name in enumerate(classes) if number not in tested]:
            sentences.append(
                f"{len(untested)} of {len(classes)} classes have no row in test (such as {untested[0]}), so the "
                "result says nothing of them; add rows, or correct their labels."
            )
        for held, others in (("test", ("train", "val")), ("val", ("train",))):
            apart = [other for other in others if members[other] is not members["test"]]
            seen = {self.digests[i]: i for other in apart for i in members[other]}
            if again := [i for i in members[held] if self.digests[i] in seen]:
                first = seen[self.digests[again[0]]]
                sentences.append(
                    f"{len(again)} of {counted(len(members[held]), 'row')} of {held} are in {' or '.join(apart)} too "
                    f"(such as {self.where(again[0])} and {self.where(first)}), which flatters the result; delete them "
                    "from one."
                )
        labelled: dict[str, int] = {}
        if twice := [i for i, one in enumerate(self.digests) if targets[labelled.setdefault(one, i)] != targets[i]]:
            first = labelled[self.digests[twice[0]]]
            sentences.append(
                f"Equal rows with different labels: {len(twice)} (such as {self.where(first)} and "
                f"{self.where(twice[0])}); correct one of the labels."
            )
        return sentences


@dataclass(frozen=True, slots=True)
class Division:
    """How rows are divided into splits.

    A split that the user gives stays as it is. A missing test split is drawn from the training rows, then a missing
    validation split from the rest: a fraction of the rows, in proportion to the classes, equal rows on one side.
    cases: the maximum number of rows of each split. protocol: with "paper" the validation rows are the test rows, and
    none are drawn.
    """

    val_fraction: float
    test_fraction: float
    seed: int
    cases: int | None
    protocol: str

    @property
    def drawing(self) -> tuple[float, float, int, str]:
        """The settings that affect `drawn`."""
        return self.val_fraction, self.test_fraction, self.seed, self.protocol

    def drawn(self, rows: OwnRows, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Sorted indices of all rows of train, val and test. The drawn ones do not depend on the order of the rows."""
        splits, digests = np.array(rows.splits), np.array(rows.digests)
        strata = targets if targets.dtype == np.int64 else np.zeros(len(targets), np.int64)
        members = {name: np.flatnonzero(splits == name) for name in ("train", "val", "test")}
        for name, fraction in (("test", self.test_fraction), ("val", self.val_fraction)):
            if name == "val" and self.protocol == "paper":
                members["val"] = members["test"]
            if not len(members[name]):
                train = members["train"]
                _, first, group = np.unique(digests[train], return_index=True, return_inverse=True)
                count = len(first) - math.ceil(fraction * len(first))
                fit = np.isin(group, proportional(strata[train][first], count, self.seed))
                members["train"], members[name] = train[fit], train[~fit]
            if not len(members[name]) or not len(members["train"]):
                raise UserError(
                    f"There are too few different rows ({len({*rows.digests})} of {len(splits)}) to keep some apart "
                    f"for {name}, because equal ones stay together; add rows, or change data.{name}_fraction."
                )
        return members

    def opened(self, cache: Cache, where: Callable[[int], str]) -> tuple[dict[str, np.ndarray], str]:
        """The rows of each split of a cache with the `facts` of its rows, and the fingerprint of both; logs `notes`."""
        targets, facts = cache.splits["all"].targets, cache.facts
        rows = OwnRows(facts["splits"], (), facts["digests"], where)
        members = self.drawn(rows, targets)
        for note in rows.notes(targets, members, facts["classes"]):
            log.warning(note)
        chosen = {name: i[some(len(i), self.cases, [self.seed, k])] for k, (name, i) in enumerate(members.items())}
        if self.protocol == "paper":
            chosen["val"] = chosen["test"]
        return chosen, hashlib.sha256(f"{cache.fingerprint} {facts['splits']}".encode()).hexdigest()[:16]


OF_ROWS = ("splits", "digests", "places", "paths")
"""Facts of a cache with an entry for each row or file."""


def facts(rows: OwnRows, classes: list[str]) -> dict[str, Any]:
    """What `Division.opened` needs beside the targets, for a cache."""
    return {"classes": classes, "splits": list(rows.splits), "digests": list(rows.digests)}


def digest(content: bytes) -> str:
    """Sixteen hexadecimal digits of a hash."""
    return hashlib.sha256(content).hexdigest()[:16]


def _number(word: str) -> float:
    """The number that a word is, else NaN. To Python, 1_11 and 11_1 are both 111."""
    try:
        return math.nan if "_" in word else float(word)
    except ValueError:
        return math.nan
