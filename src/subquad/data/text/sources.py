"""Sources of text documents: a folder of .txt files, or a data set of the `datasets` library."""

import csv
import glob
import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from subquad.data import ragged
from subquad.data.listing import files_below
from subquad.data.synthetic import written_once
from subquad.utils.errors import UserError, first_line

Unit = Literal["file", "paragraph"]


class Texts(Protocol):
    """Documents that are read on access."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...

    def take(self, indices: np.ndarray) -> "Texts":
        """The documents of these indices."""


@dataclass(frozen=True, slots=True)
class FolderTexts:
    """The .txt files of a folder and its subfolders, in the order of their names.

    spans: int64 [N, 3], for each document the index of its file, its first byte and the byte after its last.
    """

    paths: tuple[Path, ...]
    spans: np.ndarray

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[str]:
        for number, first, end in self.spans.tolist():
            with self.paths[number].open("rb") as file:
                file.seek(first)
                content = file.read(end - first)
            try:
                yield content.decode("utf-8-sig").replace("\r\n", "\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.paths[number]} is not UTF-8 (byte {first + error.start}); convert it, or take it out."
                ) from None

    def take(self, indices: np.ndarray) -> "FolderTexts":
        """The documents of these indices."""
        return FolderTexts(self.paths, self.spans[indices])


def text_files(folder: Path) -> tuple[Path, ...]:
    """The .txt files below a folder. Raises UserError if there are none."""
    paths = tuple(files_below(folder, ".txt"))
    if not paths:
        raise UserError(f"{folder} has no .txt files; give data.folder a folder of text, or data.dataset a data set.")
    return paths


def read_folder(folder: Path, unit: Unit) -> FolderTexts:
    """The documents of a folder: its files, or their paragraphs, which are separated by blank lines."""
    paths = text_files(folder)
    if unit == "file":
        spans = [(number, 0, path.stat().st_size) for number, path in enumerate(paths)]
    else:
        spans = [span for number, path in enumerate(paths) for span in _paragraphs(number, path)]
    return FolderTexts(paths, np.array(spans, np.int64).reshape(-1, 3))


def _paragraphs(number: int, path: Path) -> Iterator[tuple[int, int, int]]:
    first = position = 0
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                if position > first:
                    yield number, first, position
                first = position + len(line)
            position += len(line)
    if position > first:
        yield number, first, position


@dataclass(frozen=True, slots=True)
class DatasetTexts:
    """A text column of a `datasets.Dataset`; each row is a document."""

    rows: Any
    column: str

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        for batch in self.rows.iter(batch_size=1000):
            yield from (text or "" for text in batch[self.column])

    def take(self, indices: np.ndarray) -> "DatasetTexts":
        """The documents of these indices."""
        return DatasetTexts(self.rows.select(indices), self.column)


def dataset_folder(name: str, subset: str | None, root: Path) -> Path:
    """The path of `data.dataset`: itself if it exists, else the folder to which `fetch_dataset` downloads it.

    Raises UserError for a subset of a folder that the library saved, which has none.
    """
    if (place := Path(name)).exists():
        if subset is not None and _is_saved(place):
            raise UserError(f"{place} was saved without subsets; leave data.subset={subset} out, or name its folder.")
        return place
    return root / "datasets" / "--".join([*name.strip("/").split("/"), *([subset] if subset else [])])


def _files(place: Path) -> list[Path]:
    """The files of a data set, which is a folder or a single file."""
    return files_below(place) if place.is_dir() else [place]


def state_of(place: Path) -> str:
    """Hexadecimal digits that change with the files of a data set and with their folders."""
    return ragged.state_of(_files(place), place if place.is_dir() else None)


_KINDS = {
    ".parquet": "parquet", ".arrow": "arrow", ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv",
    ".txt": "text",
}  # fmt: skip


def tables_of(place: Path) -> list[Path]:
    """The tables of a folder or a file; none of a folder that the library saved, which then knows its own."""
    return [] if _is_saved(place) else [path for path in _files(place) if path.suffix.lower() in _KINDS]


def _is_saved(place: Path) -> bool:
    return (place / "dataset_dict.json").exists() or (place / "state.json").exists()


def read_dataset(place: Path, column: str, scratch: Path, subset: str | None = None) -> dict[str, DatasetTexts]:
    """The splits of a data set on disk with one text column; raises UserError as `read_tables` does.

    Also if the column is missing or is not text, or if there is no split train.
    """
    splits = read_tables(place, scratch, subset)
    for name, rows in splits.items():
        if not is_text(rows, column):
            raise UserError(
                f"The split {name} of {place} has no text in a column {column} (it has {', '.join(rows.features)}); "
                "name the column by data.column."
            )
    if "train" not in splits:
        raise UserError(f"{place} has no split train (it has {', '.join(splits)}); merge or rename its splits.")
    return {str(name): DatasetTexts(rows, column) for name, rows in splits.items()}


def is_text(rows: Any, column: str) -> bool:
    """Whether a column of a `datasets.Dataset` exists and holds text."""
    return getattr(rows.features.get(column), "dtype", None) in ("string", "large_string")


def read_tables(
    place: Path, scratch: Path, subset: str | None = None, encoding: str = "utf-8", quotes: bool = True
) -> dict[str, Any]:
    """The splits of a data set on disk, each a `datasets.Dataset`; a file is the split train.

    The data set was saved by the library, or is a file or folder of parquet, arrow, JSON, CSV or TSV; `subset` is one
    that its README.md describes. All columns of CSV and TSV files are text, read in `encoding`; with `quotes`, fields
    may be quoted. `scratch` is an empty folder for the library's cache, which must exist as long as the rows are used.
    Raises UserError if the library cannot read the data set, or would leave out one of its tables.
    """
    import datasets  # slow to import, and only needed for text that is not tokenised yet

    quiet, loud = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)  # the library logs errors that it raises too
    try:
        loaded = _opened(datasets, place, subset, scratch, encoding, quotes)
    except Exception as error:  # every format raises its own exceptions
        cause = error.__cause__ or error
        line = _undecodable(place, encoding) if isinstance(cause, UnicodeError) and place.is_file() else None
        if line is not None:
            raise UserError(
                f"Line {line} of {place} is not {encoding.upper()}; convert the file, or set data.encoding (latin-1, "
                "cp1252, utf-16)."
            ) from None
        reason = first_line(cause)
        if "EOF inside string" in reason:
            reason += "; a quotation mark is never closed, and data.quotes=false reads it as text"
        if "Config name is missing" in reason:
            names = str(cause).partition("available configs: ")[2].partition("\n")[0]
            reason = f"data.subset has to name one of its subsets: {names}"
        if "corresponds to no data" in reason:
            reason = "it has no rows"
        raise UserError(f"{place} cannot be read as a data set ({reason}); mend it, or choose another one.") from None
    finally:
        datasets.logging.set_verbosity(loud)
        if not quiet:
            datasets.enable_progress_bars()
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _opened(datasets: Any, place: Path, subset: str | None, scratch: Path, encoding: str, quotes: bool) -> Any:
    if _is_saved(place):
        return datasets.load_from_disk(str(place))
    if place.is_dir():
        where = {"path": str(place), "name": subset}
        tables = _read_by(datasets.load_dataset_builder(**where, cache_dir=str(scratch)), place)
    else:
        # The library would take any other kind for the name of a published data set and try to download it.
        if (ending := place.suffix.lower()) not in _KINDS:
            raise ValueError(f"files end in {', '.join(_KINDS)}")
        where = {"path": _KINDS[ending], "data_files": glob.escape(str(place))}
        tables = [place]
    only_csv = {_KINDS[path.suffix.lower()] for path in tables} == {"csv"}
    options = _as_text(datasets, tables[0], encoding, quotes) if only_csv else {}
    loaded = datasets.load_dataset(**where, cache_dir=str(scratch), **options)
    if options.get("sep") == "\t" and quotes:
        _check_quotes(loaded)
    return {name: _without_blank_end(rows) for name, rows in loaded.items()} if options else loaded


def _read_by(builder: Any, place: Path) -> list[Path]:
    """The tables of a folder that the library reads; all of them, unless a README.md says which belong together."""
    read = [Path(name) for names in builder.config.data_files.values() for name in names]
    readme = place / "README.md"
    described = readme.exists() and "configs:" in readme.read_text(encoding="utf-8")
    notes = {".txt", ".json"} - {path.suffix for path in read}  # beside other tables: a readme, what a tool has saved
    unread = set(tables_of(place)) - {*read, place / "dataset_infos.json"}
    if (left_out := sorted(path for path in unread if path.suffix.lower() not in notes)) and not described:
        raise ValueError(
            f"{left_out[0].relative_to(place)} would be left out beside {read[0].relative_to(place)}; tables are of "
            "one kind, and all or none have names with a split: train, validation, test"
        )
    return read


def _as_text(datasets: Any, place: Path, encoding: str, quotes: bool) -> dict[str, Any]:
    """Options that read every column of a CSV file as text, so that "NA", "007" and "" stay what they are.

    Columns are separated by a tab, a semicolon or a comma, whichever is most frequent in the first line.
    """
    import pandas as pd

    with place.open(encoding=encoding) as file:
        separator = max(",;\t", key=file.readline().count)
    form = {"sep": separator, "encoding": encoding, "quoting": csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE}
    start = pd.read_csv(place, nrows=1, **form)
    if not isinstance(start.index, pd.RangeIndex):  # pandas takes what is too much for the names of the rows
        raise ValueError(
            f"the header has {len(start.columns)} fields and the first row more; a text with the separator needs "
            "quotation marks"
        )
    features = datasets.Features({str(name): datasets.Value("string") for name in start.columns})
    return {**form, "features": features, "keep_default_na": False, "skip_blank_lines": False}


def _without_blank_end(rows: Any) -> Any:
    """Without the rows of blank lines at the end of a file; others stay, or the numbers of rows would be wrong."""
    count = len(rows)
    while count and not any(rows[count - 1].values()):
        count -= 1
    return rows.select(range(count)) if count < len(rows) else rows


def _check_quotes(loaded: Mapping[str, Any]) -> None:
    """Raises ValueError if a cell has tabs and line breaks: what stands between two stray quotation marks."""
    import pyarrow.compute as arrow

    for rows in loaded.values():
        for column in rows.data.columns:
            swallowed = arrow.match_substring_regex(column, "(?s)\t.*\n|\n.*\t")
            if arrow.any(swallowed).as_py():
                start = column.filter(swallowed)[0].as_py()[:40]
                raise ValueError(
                    f"a quotation mark makes several lines one cell, {start!r}...; data.quotes=false reads it as text"
                )


def _undecodable(place: Path, encoding: str) -> int | None:
    """The number of the first line that is not in an encoding."""
    with place.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode(encoding)
            except UnicodeError:
                return number
    return None


def fetch_dataset(name: str, subset: str | None, root: Path) -> None:
    """Downloads a published data set, such as Salesforce/wikitext, unless it exists."""
    folder = dataset_folder(name, subset, root)
    if folder.exists():
        return

    def write(target: Path) -> None:
        import datasets

        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            datasets.load_dataset(name, subset, cache_dir=scratch).save_to_disk(str(target))

    try:
        written_once(folder, write)
    except Exception as error:  # each way of downloading raises its own exceptions
        reason = first_line(error)
        raise UserError(
            f"The data set {name} could not be fetched ({reason}); save it elsewhere by the datasets library's "
            f"save_to_disk and put the folder at {folder}."
        ) from None


def split_documents(count: int, fractions: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """A seeded split of documents into `train` and the names of `fractions`: sorted indices, at least one each."""
    if count < len(fractions) + 1:
        raise UserError(
            f"The text has {count} documents, too few to keep some apart for validation and test; add documents, or "
            "cut files into paragraphs by data.document=paragraph."
        )
    order = np.random.default_rng(seed).permutation(count)
    held_out = {}
    for name, fraction in fractions.items():
        size = max(1, round(fraction * count))
        held_out[name], order = np.sort(order[:size]), order[size:]
    if not len(order):
        raise UserError("data.val_fraction and data.test_fraction leave no document to train on; lower them.")
    return {"train": np.sort(order), **held_out}
