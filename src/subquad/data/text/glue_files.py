"""Reads three tasks of GLUE from the benchmark's tab-separated files or from parquet files.

Source: Wang et al. 2019, https://arxiv.org/abs/1804.07461, https://gluebenchmark.com. The labels of the test files are
not public, so only train and dev are read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from subquad.data.archives import fetch_files
from subquad.data.listing import is_data
from subquad.utils.errors import UserError, first_line

GlueName = Literal["sst2", "qnli", "qqp"]
_ADDRESS = "https://dl.fbaipublicfiles.com/glue/data/"
_FILES = {"train": ("train.tsv", "train-*.parquet"), "dev": ("dev.tsv", "validation-*.parquet")}


class Labelled(NamedTuple):
    """Texts or pairs of texts with their classes; `second` is None for single texts. targets: int64 [N]."""

    first: list[str]
    second: list[str] | None
    targets: np.ndarray


@dataclass(frozen=True, slots=True)
class Table:
    """The folder and columns of a task, its labels in the order of classes, its archive, and published row counts.

    `rows` has several counts for a file whose releases differ.
    """

    folder: str
    columns: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    archive: str
    sha256: str
    rows: dict[str, tuple[int, ...]]


TABLES: dict[str, Table] = {
    "sst2": Table(
        "SST-2", ("sentence",), "label", ("0", "1"), "SST-2.zip",
        "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa", {"train": (67_349,), "dev": (872,)},
    ),
    "qnli": Table(
        "QNLI", ("question", "sentence"), "label", ("entailment", "not_entailment"), "QNLIv2.zip",
        "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5", {"train": (104_743,), "dev": (5_463,)},
    ),
    "qqp": Table(
        "QQP", ("question1", "question2"), "is_duplicate", ("0", "1"), "QQP-clean.zip",
        "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        {"train": (363_846, 363_849), "dev": (40_430,)},
    ),
}  # fmt: skip
"""The checksums are from the `datasets` library's version of GLUE."""


def present(folder: Path, name: str) -> bool:
    """Whether the files of train and dev exist."""
    return all(_existing_files(folder, name).values())


def _existing_files(folder: Path, name: str) -> dict[str, list[Path]]:
    existing = {}
    for split, (text, parquet) in _FILES.items():
        tsv = folder / TABLES[name].folder / text
        existing[split] = (
            [tsv] if tsv.is_file() else sorted(path for path in (folder / name).glob(parquet) if is_data(path.name))
        )
    return existing


def files(folder: Path, name: str) -> dict[str, list[Path]]:
    """The files of train and dev: <folder>/SST-2/train.tsv, or <folder>/sst2/train-*.parquet as on Hugging Face.

    Raises UserError, with instructions, when one is missing.
    """
    existing = _existing_files(folder, name)
    for split, paths in existing.items():
        if not paths:
            table, (tsv, parquet) = TABLES[name], _FILES[split]
            raise UserError(
                f"{folder / table.folder / tsv} is missing; run `python scripts/prepare.py task=glue/{name}`, or "
                f"unpack {_ADDRESS}{table.archive} in {folder}, or put {parquet} into {folder / name}."
            )
    return existing


def read(paths: list[Path], name: str, split: str, genuine: bool = True) -> Labelled:
    """The texts and classes of a split. Raises UserError for damaged files and, if `genuine`, for other row counts.

    Some releases of QQP have incomplete rows; these are dropped if the published number of rows remains.
    """
    table = TABLES[name]
    rows, damaged = (_parquet if paths[0].suffix == ".parquet" else _tsv)(paths, table)
    if genuine and len(rows) not in table.rows[split]:
        expected = " or ".join(f"{count:,}" for count in table.rows[split])
        raise UserError(
            f"{paths[0]} has {len(rows):,} rows where {table.folder} has {expected} "
            f"({damaged or 'none'} incomplete); use the published one."
        )
    if not rows or (damaged and not genuine):
        raise UserError(
            f"{paths[0]} has {len(rows)} whole rows and {damaged}, which is no {table.folder}; use the published one."
        )
    texts = [list(column) for column in zip(*(row[:-1] for row in rows), strict=True)]
    targets = np.array([row[-1] for row in rows], np.int64)
    return Labelled(texts[0], texts[1] if len(texts) > 1 else None, targets)


def _tsv(paths: list[Path], table: Table) -> tuple[list[tuple[Any, ...]], int]:
    """The complete rows, and the number of incomplete ones; quotation marks have no special meaning."""
    [path] = paths
    try:
        header, *lines = path.read_bytes().decode("utf-8-sig").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); use the published one.") from None
    names = [name.strip() for name in header.split("\t")]
    if not {*table.columns, table.label} <= {*names}:
        raise UserError(
            f"{path} has the columns {', '.join(names)} and not {', '.join([*table.columns, table.label])}; "
            f"it is no {table.folder} with labels."
        )
    text_columns = [names.index(column) for column in table.columns]
    label_column = names.index(table.label)
    rows, damaged = [], 0
    for number, line in enumerate(lines, 2):
        cells = line.rstrip("\r").split("\t")
        if len(cells) != len(names):
            damaged += 1
            continue
        if cells[label_column] not in table.labels:
            raise UserError(f"{path} has the label {cells[label_column]!r} in line {number}; use the published one.")
        rows.append((*(cells[column] for column in text_columns), table.labels.index(cells[label_column])))
    return rows, damaged


def _parquet(paths: list[Path], table: Table) -> tuple[list[tuple[Any, ...]], int]:
    import pandas as pd

    columns = [*table.columns, "label"]
    try:
        frame = pd.concat([pd.read_parquet(path, columns=columns) for path in paths])
    except Exception as error:  # pyarrow raises many kinds of exceptions for damaged files
        reason = first_line(error)
        raise UserError(f"{paths[0]} cannot be read as {table.folder} ({reason}); use the published one.") from None
    labels = frame["label"].to_numpy()
    if not np.isin(labels, range(len(table.labels))).all():
        raise UserError(
            f"{paths[0]} has labels other than 0 and 1 (those of the test file are hidden); use the published one."
        )
    complete = frame[~frame.isna().any(axis=1)]
    return [tuple(row) for row in complete.itertuples(index=False)], len(frame) - len(complete)


def fetch(folder: Path, name: str) -> None:
    """Downloads and checks the archive and extracts its two files. Raises UserError when that fails."""
    table = TABLES[name]
    url = _ADDRESS + table.archive
    fetch_files(table.folder, url, f"sha256:{table.sha256}", folder, members(folder, table))


def members(folder: Path, table: Table) -> dict[str, Path]:
    """The two files in the archive, and where they go."""
    return {f"{table.folder}/{name}": folder / table.folder / name for name, _ in _FILES.values()}


def write_synthetic(folder: Path, name: str) -> Path:
    """Writes small files in the benchmark's layout to `folder`, and returns it; labels follow from the words."""
    table = TABLES[name]
    rng = np.random.default_rng(0)
    things = ["river", "castle", "engine", "violin", "planet", "garden"]
    (folder / table.folder).mkdir(parents=True, exist_ok=True)
    number = 0
    for split, rows in (("train", 96), ("dev", 32)):
        names = ["index", *table.columns, table.label] if table.folder != "SST-2" else [*table.columns, table.label]
        lines = ["\t".join(names)]
        for _ in range(rows):
            number += 1
            label = int(rng.integers(2))
            if name == "sst2":
                cells = [f'a "{["dull", "moving"][label]}" film number {number}']
            else:
                first, other = rng.choice(things, 2, replace=False)
                same = label == (1 if name == "qqp" else 0)
                cells = [
                    str(number),
                    f"where is the {first} of town {number} ?",
                    f"the {first if same else other} is here",
                ]
            lines.append("\t".join([*cells, table.labels[label]]))
        (folder / table.folder / _FILES[split][0]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
