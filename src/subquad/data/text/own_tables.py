"""Finds and reads a user's labelled tables: files of train, val and test, or a data set of the `datasets` library."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subquad.data.own_rows import SPLITS
from subquad.data.text import sources
from subquad.utils.errors import UserError, first_line

log = logging.getLogger(__name__)

LABELS = ("label", "labels", "class", "target", "category", "sentiment", "y")
"""Names by which a column of labels is found."""

ARRAY = "tokens.npy"
"""The file of a folder of token ids."""

_NUMBERS = ("", "id", "idx", "index", "unnamed: 0")


@dataclass(frozen=True, slots=True)
class Part:
    """A table, its split, and its place for messages."""

    split: str
    table: Any
    place: str

    def named(self, known: Sequence[str]) -> str | None:
        """The first column that has a `known` name."""
        return next((name for name in self.table.features if name.lower().strip() in known), None)

    def column(self, named: str | None, known: Sequence[str], setting: str) -> str:
        """The column `named` by a setting, else one of the `known` names. Raises UserError if there is none."""
        columns = list(self.table.features)
        if named is None:
            named = self.named(known)
        if named is None or named not in columns:
            shown = f"and none named {', '.join(known)}" if named is None else f"not {named}"
            raise UserError(
                f"{self.place} has the columns {', '.join(map(repr, columns))}, {shown}; name the column by "
                f"data.{setting}, or add a first line with the names to a CSV file."
            )
        return named

    def other_columns(self, label: str, known: Sequence[str]) -> list[str]:
        """The columns without the label and the number of a row: all, or the one that has a `known` name."""
        others = [name for name in self.table.features if name != label and name.lower().strip() not in _NUMBERS]
        return [name for name in others if name.lower().strip() in known][:1] or others

    def labels(self, column: str) -> list[Any]:
        """The values of a column; of classes their names, and None for hidden ones (-1)."""
        names = getattr(self.table.features[column], "names", None)
        values = list(self.table[column])
        return values if names is None else [names[v] if v is not None and v >= 0 else None for v in values]


@dataclass(frozen=True, slots=True)
class OwnTables:
    """The settings of a task that name its files.

    files: paths of train, val and test, or None: files that `read_tables` reads, or folders of arrays. dataset, subset:
    a folder that the `datasets` library can read or the name of a published data set, in place of `files`. encoding,
    quotes: of CSV files.
    """

    task: str
    root: Path
    files: dict[str, str | None]
    dataset: str | None
    subset: str | None
    encoding: str = "utf-8"
    quotes: bool = True

    def fetch(self) -> None:
        """Downloads a published data set unless it exists."""
        if self.dataset is not None:
            sources.fetch_dataset(self.dataset, self.subset, self.root)

    @property
    def places(self) -> dict[str, Path]:
        """The file of each split, or of the whole data set (""). Raises UserError if one is missing."""
        given = {split: name for split, name in {**self.files, "": self.dataset}.items() if name is not None}
        if ("train" in given) == ("" in given) or ("" in given and len(given) > 1):
            raise UserError(
                f"task={self.task} needs data.train=<file>, with data.val and data.test if there are, or "
                "data.dataset=<folder or name>."
            )
        if self.dataset is not None:
            places = {"": sources.dataset_folder(self.dataset, self.subset, self.root)}
        else:
            places = {split: Path(name).expanduser() for split, name in given.items()}
        for split, place in places.items():
            if not place.exists():
                remedy = "" if split else f", or run `python scripts/prepare.py task={self.task} data.dataset=...`"
                raise UserError(f"data.{split or 'dataset'}={place} does not exist; correct the path{remedy}.")
        return places

    @property
    def state(self) -> str:
        """Hexadecimal digits that change with the files and with these settings."""
        states = [(split, sources.state_of(place)) for split, place in self.places.items()]
        return hashlib.sha256(repr((states, self.subset, self.encoding, self.quotes)).encode()).hexdigest()[:12]

    def unlabelled(self, place: Path, scratch: Path) -> Part:
        """One more table, whose labels are not read. `scratch` must exist as long as it is used."""
        if (place / ARRAY).is_file():
            return Part("", _arrays(place, labelled=False), str(place))
        if len(files := sources.tables_of(place)) > 1:
            raise UserError(f"{place} has {len(files)} tables, such as {files[0].name}; name one of them.")
        tables = sources.read_tables(place, scratch, None, self.encoding, self.quotes)
        if len(tables) > 1:
            raise UserError(f"{place} has the splits {', '.join(tables)}; name the file of one.")
        [table] = tables.values()
        return Part("", table, str(place))

    def read(self, scratch: Path) -> list[Part]:
        """The tables of all splits. `scratch` must exist as long as they are used."""
        parts = []
        for number, (split, place) in enumerate(self.places.items()):
            (folder := scratch / str(number)).mkdir()
            if split and (place / ARRAY).is_file():
                tables = {split: _arrays(place)}
            else:
                tables = sources.read_tables(place, folder, self.subset, self.encoding, self.quotes)
            if split and len(tables) > 1:
                raise UserError(f"{place} has the splits {', '.join(tables)}; give it as data.dataset.")
            unknown = [str(name) for name in tables if not split and str(name).lower() not in SPLITS]
            if unknown:
                log.warning("Of %s only train, val and test are read, not %s.", place, ", ".join(unknown))
            for name, table in tables.items():
                if known := split or SPLITS.get(str(name).lower(), ""):
                    parts.append(Part(known, table, str(place) if split else f"{place}, split {name}"))
        if not any(part.split == "train" and len(part.table) for part in parts):
            raise UserError(f"{next(iter(self.places.values()))} has no training rows; add some.")
        return parts


def place_of_rows(parts: Sequence[tuple[str, int]]) -> Callable[[int], str]:
    """Names row i of several tables, each given by its place and number of rows."""
    starts = np.cumsum([0, *(rows for _, rows in parts)])

    def where(i: int) -> str:
        number = int(np.searchsorted(starts, i, side="right")) - 1
        return f"{parts[number][0]}, row {i - starts[number] + 1}"

    return where


def _arrays(place: Path, labelled: bool = True) -> Any:
    """A table of tokens.npy [N, longest] and labels.npy [N]; lengths.npy [N] or zeros on the right cut the rows."""
    import datasets

    arrays = {}
    for path in place.glob("*.npy"):
        try:
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} cannot be read ({first_line(error)}); save it again by numpy.save.") from None
    tokens = arrays["tokens"]
    if tokens.ndim != 2 or not tokens.size:
        raise UserError(f"{place}/tokens.npy has the shape {[*tokens.shape]}, not [rows, longest]; pad the rows by 0.")
    lengths = arrays.get("lengths", tokens.shape[1] - (tokens[:, ::-1] != 0).argmax(1))
    labels = arrays.get("labels", np.empty(0)) if labelled else np.zeros(len(tokens), np.int64)
    for name, array in (("labels", labels), ("lengths", lengths)):
        if array.shape != (len(tokens),):
            raise UserError(f"{place} has {len(tokens)} rows in tokens.npy and {[*array.shape]} {name}; give each one.")
    if not np.issubdtype(lengths.dtype, np.integer):
        raise UserError(f"{place}/lengths.npy has {lengths.dtype} numbers; save whole ones.")
    if wrong := np.flatnonzero((lengths < 1) | (lengths > tokens.shape[1])).tolist():
        raise UserError(
            f"{place}, row {wrong[0] + 1} has the length {lengths[wrong[0]]} where tokens.npy has {tokens.shape[1]} "
            "columns; correct lengths.npy."
        )
    rows = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
    return datasets.Dataset.from_dict({"tokens": rows, "label": labels})
