"""The base class of the user's own labelled texts and tokens."""

import abc
import dataclasses
import hashlib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from subquad.data.own_rows import OF_ROWS, Division, Kind, OwnRows, digest, facts
from subquad.data.ragged import Ragged
from subquad.data.split_data import CachedData, SequenceData
from subquad.data.text.own_tables import LABELS, OwnTables, Part, place_of_rows
from subquad.utils.display import counted
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Seed, Share

log = logging.getLogger(__name__)


class OwnSequences(CachedData, SequenceData):
    """Labelled rows of tables; subclasses turn the other columns into sequences.

    train, val, test: the file of each split; missing ones are drawn.
    dataset: a folder that the `datasets` library can read, or the name of a published data set, in place of files.
    subset: of a published data set.
    label: the column of classes or numbers; null: one that is named label, class, target, ...
    kind: classes, or numbers, which are not scaled.
    encoding: of CSV and TSV files.
    quotes: whether fields of CSV and TSV files may be quoted.
    val_fraction: fraction of the training rows that replaces missing validation rows.
    test_fraction: fraction of the training rows that replaces missing test rows. Rows are drawn by `split_seed` in
        proportion to the classes, equal rows on one side.
    protocol: "clean" selects on validation rows, "paper" on test rows.
    cases: the maximum number of rows of each split; limits.cases sets it.

    Raises UserError, with file, row and column, for what cannot be read; rows that are in two splits or have two labels
    are logged.
    """

    def __init__(
        self, *, root: str, train: str | None = None, val: str | None = None, test: str | None = None,
        dataset: str | None = None, subset: str | None = None, label: str | None = None, kind: Kind = "classification",
        encoding: str = "utf-8", quotes: bool = True, protocol: Literal["paper", "clean"] = "clean",
        val_fraction: Share = 0.2, test_fraction: Share = 0.2, split_seed: Seed = 42, cases: Count | None = None,
        synthetic: bool = False, **batching: Any,
    ) -> None:  # fmt: skip
        super().__init__(**batching)
        self.root, self.synthetic, self.label, self.kind = Path(root), synthetic, label, kind
        self.synthetic_home = self.root / "synthetic" / self.task.replace("/", "_")
        files = {"train": train, "val": val, "test": test}
        if synthetic:
            files, dataset = {"train": str(self.synthetic_home / self.synthetic_file)}, None
        self.tables = OwnTables(self.task, self.root, files, dataset, subset, encoding, quotes)
        self.division = Division(val_fraction, test_fraction, split_seed, cases, protocol)

    synthetic_file: ClassVar[str] = ""
    reading_of_further: ClassVar[tuple[str, ...]] = ("encoding", "quotes")
    names: ClassVar[Sequence[str]]
    """Names by which a column of sequences is found."""

    @property
    @abc.abstractmethod
    def reading(self) -> tuple[Any, ...]:
        """The settings of a subclass that affect the cache."""

    @abc.abstractmethod
    def contents(self, part: Part, label: str) -> Sequence[Any]:
        """The texts or the tokens of each row of a table."""

    @abc.abstractmethod
    def tokens(self, contents: Sequence[Any], targets: np.ndarray, train: np.ndarray) -> tuple[Ragged, dict[str, Any]]:
        """The sequences of all rows, and facts for the cache; `train` are the indices of the training rows."""

    @abc.abstractmethod
    def further(self, contents: Sequence[Any], targets: np.ndarray, place: Path) -> Ragged:
        """The sequences of rows that `place` holds beside those of the splits."""

    def unlabelled(self, place: Path) -> tuple[Ragged, list[str]]:
        with tempfile.TemporaryDirectory(prefix=".rows-", dir=self._scratch) as scratch:
            part = self.tables.unlabelled(place, Path(scratch))
            found, trained = [*part.table.features], self._facts.get("columns")  # older caches have none
            if trained and part.named(self.names) is None and not {*found} & {*trained}:
                raise UserError(
                    f"{place} has the columns {', '.join(map(repr, found))} and the training files "
                    f"{', '.join(map(repr, trained))}; rename one as in training, or add a first line with the "
                    "names if there is none."
                )
            known = [name for name in trained or [] if name in found]  # first, so that the same column is read
            table = part.table.select_columns([*known, *(name for name in found if name not in known)])
            part = dataclasses.replace(part, table=table)
            contents = self.contents(part, self.label or part.named(LABELS) or "")
            rows = self.further(contents, np.zeros(len(contents), np.int64), place)
        if long := int((rows.lengths > self.spec.max_len).sum()):
            longest = self.spec.max_len
            log.warning("Longer than the %s tokens of any row of the run: %s.", longest, counted(long, "row"))
        return rows, [str(number) for number in range(1, len(rows) + 1)]

    @property
    def class_names(self) -> list[str]:
        return list(self._facts["classes"])

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        """Those of the cache that are not of single rows, and the tokens of the longest row."""
        if self.given_facts is not None:
            return self.given_facts
        of_all = {name: value for name, value in self._cache.facts.items() if name not in OF_ROWS}
        return of_all | {"longest": int(self._cache.splits["all"].lengths.max())}

    def portable_facts(self) -> dict[str, Any]:
        return dict(self._facts)

    @property
    def classes(self) -> int | None:
        """Number of classes; None for regression."""
        return len(self.class_names) or None

    def fetch(self) -> None:
        self.tables.fetch()

    def load(self) -> tuple[dict[str, Ragged], str]:
        rows = self._cache.splits["all"]
        members, fingerprint = self.division.opened(self._cache, place_of_rows(self._cache.facts["places"]))
        return {name: rows.take(indices) for name, indices in members.items()}, fingerprint

    @property
    def cache_folder(self) -> Path:
        settings = (self.tables.state, self.label, self.kind, self.division.drawing, *self.reading)
        return self.root / "cache" / self.task / hashlib.sha256(repr(settings).encode()).hexdigest()[:12]

    def _make(self) -> tuple[dict[str, Ragged], dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix=".rows-", dir=self.cache_folder.parent) as scratch:
            parts = self.tables.read(Path(scratch))
            label = parts[0].column(self.label, LABELS, "label")
            for part in [*parts] if self.tables.dataset else ():
                if part.split != "train" and not any(value is not None for value in part.labels(label)):
                    log.warning("%s is not read, because its labels are hidden.", part.place)
                    parts.remove(part)
            contents = [row for part in parts for row in self.contents(part, label)]
            labels = [value for part in parts for value in part.labels(part.column(label, (), "label"))]
            places = [(part.place, len(part.table)) for part in parts]
            splits = [part.split for part in parts for _ in range(len(part.table))]
        digests = [digest(row.tobytes() if isinstance(row, np.ndarray) else repr(row).encode()) for row in contents]
        rows = OwnRows(splits, labels, digests, place_of_rows(places), label)
        targets, classes = rows.targets(self.kind)
        tokens, known = self.tokens(contents, targets, self.division.drawn(rows, targets)["train"])
        named = {"places": places, "columns": [*parts[0].table.features]}
        return {"all": tokens}, facts(rows, classes) | known | named
