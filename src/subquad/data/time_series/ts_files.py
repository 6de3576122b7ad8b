"""Finds and reads the .ts files of the UEA and TSER archives, and writes synthetic ones."""

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from subquad.data.ragged import Ragged, lay_out
from subquad.data.time_series.sets import SETS
from subquad.utils.errors import UserError

Kind = Literal["classification", "regression"]

_ARCHIVES = {
    "classification": ("uea", "the UEA archive, timeseriesclassification.com"),
    "regression": ("tser", "the TSER archive of Tan et al., tseregression.org"),
}
_PARSER_VERSION = 1  # increase it when `parse` gives other numbers for the same files, so that caches are made anew
_ENCODING = "utf-8-sig"  # UTF-8, also with the byte order mark that some programs write
_REQUIRED = ("@problemName", "@timeStamps", "@univariate", "@classLabel or @targetLabel", "@data")
_TIMESTAMPED_VALUE = re.compile(r"\(\s*[^()]*,\s*([^(),]*?)\s*\)")


@dataclass(frozen=True, slots=True)
class Source:
    """The two files of one data set."""

    train: Path
    test: Path

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the content of both files and the version of the parser."""
        digest = hashlib.sha256(str(_PARSER_VERSION).encode())
        for path in (self.train, self.test):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:16]


def home(root: Path, dataset: str, kind: Kind) -> Path:
    """The folder of an archive's data set inside the data folder."""
    return root / _ARCHIVES[kind][0] / dataset


def task_of(dataset: str, kind: Kind) -> str:
    """The task of a data set, as in `task=<task>`."""
    return SETS[dataset].task if dataset in SETS else f"{_ARCHIVES[kind][0]}/custom"


def find(root: Path, dataset: str, kind: Kind, folder: Path | None) -> Source:
    """The files in `folder` if given; else in root/uea or root/tser (by kind), else in the installed sktime.

    Raises UserError with the names of the files, their folder and the command that downloads them.
    """
    archive, origin = _ARCHIVES[kind]
    first = folder or home(root, dataset, kind)
    for place in [first] if folder else [first, *_shipped(dataset)]:
        source = Source(place / f"{dataset}_TRAIN.ts", place / f"{dataset}_TEST.ts")
        if source.train.is_file() and source.test.is_file():
            return source
    if folder is None and dataset in SETS:
        remedy = f"run python scripts/prepare.py task={SETS[dataset].task}"
    else:
        remedy = (
            f"name the folder that holds them: python scripts/prepare.py task={archive}/custom "
            f"data.dataset={dataset} data.folder=<folder>"
        )
    raise UserError(
        f"{dataset}_TRAIN.ts and {dataset}_TEST.ts are not both in {first}: put them there (from {origin}), or {remedy}"
    )


def _shipped(dataset: str) -> list[Path]:
    spec = importlib.util.find_spec("sktime")
    return [Path(place) / "datasets" / "data" / dataset for place in (spec and spec.submodule_search_locations) or ()]


def parse(source: Source, kind: Kind, strict: bool = False) -> tuple[dict[str, Ragged], list[str]]:
    """Reads both files into splits `train` and `test` of raw values, float32 [total, channels], and the class names.

    Missing values are interpolated linearly within their case and channel, and the first and last known values are
    extended to both ends (as in mvts); a channel without any value stays NaN. Classes are numbered in the sorted order
    of TRAIN's labels, which are read in lower case, as by sktime. Regression targets are unchanged and have no class
    names. strict: the numbers and classes in the headers must be those of the cases.
    Raises UserError if a file cannot be read or the two files do not fit together.
    """
    (train, train_targets), (test, test_targets) = (_read(path, strict, kind) for path in (source.train, source.test))
    if train[0].shape[1] != test[0].shape[1]:
        raise UserError(
            f"{source.train} has {train[0].shape[1]} channels and {source.test.name} has {test[0].shape[1]}; "
            "both files must come from one data set."
        )
    labels = sorted(set(train_targets)) if kind == "classification" else []
    encode: Callable[[list[str], Path], np.ndarray]
    encode = (lambda targets, path: _numbered(targets, labels, path)) if labels else _real
    return {
        "train": lay_out(train, encode(train_targets, source.train), np.float32),
        "test": lay_out(test, encode(test_targets, source.test), np.float32),
    }, labels


def read_unlabelled(path: Path) -> list[np.ndarray]:
    """Every case of a file as float64 [steps, channels], with or without labels; raises UserError as `parse` does."""
    return _read(path, strict=True, kind=None)[0]


def _read(path: Path, strict: bool, kind: Kind | None) -> tuple[list[np.ndarray], list[str]]:
    """Every case as float64 [steps, channels], and its label in lower case; `strict` compares them with the header.

    Without a `kind`, labels are not read, and a file may have none.
    """
    header: dict[str, tuple[int, list[str]]] = {}
    cases: list[np.ndarray] = []
    labels: list[str] = []
    lines: list[int] = []
    try:
        for number, text in _lines(path):
            if "@data" in header:
                has_labels = kind is not None or _has_labels(header)
                channels, label = _parsed(text, number, header.get("@timestamps", (0, []))[1] == ["true"], has_labels)
                if cases and len(channels) != cases[0].shape[1]:
                    raise ValueError(f"line {number} has {len(channels)} channels, line {lines[0]} {cases[0].shape[1]}")
                cases.append(_case(channels, path, len(cases) + 1))
                labels.append(label)
                lines.append(number)
            elif text.startswith("@"):
                header[text.split()[0]] = number, text.split()[1:]
        _check_header(header, cases, labels, lines if strict else [])
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is truncated or not a .ts file ({error}); replace it with a fresh copy, or correct it as "
            "docs/data.md shows."
        ) from None
    if kind is not None:
        _check_labels(path, header, labels, kind)
    return cases, labels


def _check_labels(path: Path, header: dict[str, tuple[int, list[str]]], labels: list[str], kind: Kind) -> None:
    if not _has_labels(header):
        raise UserError(f"{path} has no labels; it needs a line @classLabel or @targetLabel and a label on every case.")
    if kind == "classification" and header.get("@classlabel", (0, []))[1][:1] != ["true"]:
        raise UserError(f"{path} has numbers to predict (@targetLabel), not classes; train on it by task=tser/custom.")
    if "" in labels:
        raise UserError(f"Case {labels.index('') + 1} of {path} has no label; replace the file with a complete copy.")


def _has_labels(header: dict[str, tuple[int, list[str]]]) -> bool:
    return any(header.get(tag, (0, []))[1][:1] == ["true"] for tag in ("@classlabel", "@targetlabel"))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line in lower case, without comments, and without the commas that end it."""
    with path.open(encoding=_ENCODING) as file:
        for number, line in enumerate(file, 1):
            text = line.strip().lower().rstrip(", ")
            if text and not text.startswith(("#", "%")):
                yield number, text


def _parsed(text: str, line: int, stamped: bool, labelled: bool) -> tuple[list[np.ndarray], str]:
    """The channels and the label of a line. Time stamps are dropped: the archives' steps are equally spaced."""
    text = _TIMESTAMPED_VALUE.sub(r"\1", text) if stamped else text
    *channels, label = text.split(":") if labelled else (*text.split(":"), "")
    if not channels:
        raise ValueError(f"line {line} has no colon before a label")
    return [
        _values(channel.strip(), f"line {line}, channel {i}") for i, channel in enumerate(channels, 1)
    ], label.strip()


def _values(text: str, where: str) -> np.ndarray:
    values = [value.strip() for value in text.split(",")] if text else []
    if "" in values:
        raise ValueError(f"{where} has a comma without a value; write ? for a missing value")
    try:
        return np.array([np.nan if value == "?" else float(value) for value in values], np.float64)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _check_header(
    header: dict[str, tuple[int, list[str]]], cases: list[np.ndarray], labels: list[str], lines: list[int]
) -> None:
    """Raises ValueError for lines that a header lacks, and where it states what is not true of the case in a line."""
    missing = [shown for shown in _REQUIRED if header.keys().isdisjoint(shown.lower().split(" or "))]
    if missing or not cases:
        raise ValueError(f"it has no line {' and no line '.join(missing)}" if missing and header else "it has no cases")
    for number, case, label in zip(lines, cases, labels, strict=False):
        steps, channels = case.shape
        true = {
            "@dimensions": {str(channels)},
            "@univariate": {"true", "false"} if channels == 1 else {"false"},
            "@serieslength": {str(steps), "0"},
            "@equallength": {"true", "false"} if steps == len(cases[0]) else {"false"},
        }
        for tag, (place, stated) in header.items():
            wrong = bool(stated) and stated[0] not in true.get(tag, stated)
            if wrong or (tag == "@classlabel" and stated[1:] and label not in ("", *stated[1:])):
                raise ValueError(
                    f"line {place} states {' '.join([tag, *stated])[:80]}, but line {number} has {channels} channels "
                    f"of {steps} steps and the label {label}"
                )


def _case(channels: Sequence[np.ndarray], path: Path, number: int) -> np.ndarray:
    lengths = {len(channel) for channel in channels} - {0}  # a channel left empty has no known value
    if len(lengths) != 1:
        problem = f"channels of {' and '.join(map(str, sorted(lengths)))} steps" if lengths else "no time steps"
        raise UserError(f"Case {number} of {path} has {problem}; bring all its channels to one length.")
    case = np.full((lengths.pop(), len(channels)), np.nan)
    for column, channel in zip(case.T, channels, strict=True):
        if len(channel):
            column[:] = interpolate(channel)
    if (np.abs(case) > np.finfo(np.float32).max).any():
        raise UserError(f"Case {number} of {path} has an infinite value; mark it as missing with a question mark.")
    return case


def interpolate(series: np.ndarray) -> np.ndarray:
    """Fills NaN in [steps] linearly, constant beyond the first and last known value; without values stays NaN."""
    known = np.flatnonzero(~np.isnan(series))
    if len(known) in (0, len(series)):
        return series
    return np.interp(np.arange(len(series)), known, series[known])


def _numbered(targets: list[str], labels: list[str], path: Path) -> np.ndarray:
    unknown = sorted(set(targets) - set(labels))
    if unknown:
        raise UserError(f"{path} has labels that TRAIN lacks ({', '.join(unknown)}); move such cases or relabel them.")
    return np.searchsorted(labels, targets).astype(np.int64)


def _real(targets: list[str], path: Path) -> np.ndarray:
    try:
        values = np.array(targets, dtype=np.float32)
        if not np.isfinite(values).all():
            raise ValueError("a target is missing or infinite")
    except ValueError as error:
        raise UserError(f"{path} cannot be used for regression ({error}); give every case one finite number.") from None
    return values


def write_synthetic(
    folder: Path, dataset: str, kind: Kind, *, train: int = 24, test: int = 12, channels: int = 3, classes: int = 3,
    steps: tuple[int, int] = (6, 12), seed: int = 0,
) -> None:  # fmt: skip
    """Writes a small <dataset>_TRAIN.ts and <dataset>_TEST.ts with the difficult cases of the archives.

    Lengths are drawn from `steps` (shortest, longest), and one test case is a step longer than any train case. Every
    file has a value missing inside a case, a case whose ends are missing, and a case with one channel missing. Both
    targets can be learnt: the mean of a case is its class number or its regression target.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"class{i}" for i in range(classes)]
    target_tag = f"@classLabel true {' '.join(names)}" if kind == "classification" else "@targetLabel true"
    header = [f"@problemName {dataset}", "@timeStamps false", "@missing true",
              f"@univariate {'true' if channels == 1 else 'false'}", f"@dimensions {channels}", "@equalLength false",
              target_tag, "@data"]  # fmt: skip
    for split, count in (("TRAIN", train), ("TEST", test)):
        rows = []
        for i in range(count):
            level = i % classes if kind == "classification" else rng.uniform(0, 3)
            length = steps[1] + 1 if (split, i) == ("TEST", 0) else int(rng.integers(steps[0], steps[1] + 1))
            values = np.char.mod("%.4f", level + 0.5 * rng.standard_normal((channels, length)))
            if i == 0:
                values[0, 2] = "?"
            elif i == 1:
                values[-1, [0, -1]] = "?"
            elif i == 2:
                values[-1] = "?"
            target = names[int(level)] if kind == "classification" else f"{level:.4f}"
            rows.append(":".join([*(",".join(channel) for channel in values), target]))
        (folder / f"{dataset}_{split}.ts").write_text("\n".join([*header, *rows]) + "\n", encoding="utf-8")
