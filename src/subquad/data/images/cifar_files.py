"""CIFAR-10 and CIFAR-100 in their binary version, which needs no unpickling.

A record is one label byte (CIFAR-100: coarse, then fine) and 3,072 bytes of red, green and blue planes, row by row.

Source: Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from subquad.data import ragged
from subquad.data.archives import fetch_files
from subquad.data.split_data import CachedData
from subquad.utils.errors import UserError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of a data set: folder and file names inside it, its URL, checksum, classes and label bytes."""

    folder: str
    train: tuple[str, ...]
    test: str
    url: str
    md5: str
    classes: int
    label_bytes: int
    rows: int
    """Rows of each file of CIFAR-10, and of CIFAR-100's test file."""


ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-batches-bin", tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 10, 1, 10_000,
    ),
    "cifar100": Archive(
        "cifar-100-binary", ("train.bin",), "test.bin",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 100, 2, 10_000,
    ),
}  # fmt: skip
"""The checksums are published on the page of the data set."""


class CIFARFiles(CachedData):
    """Data made of the files of `dataset` in the folder `home`."""

    dataset: str = "cifar10"
    home: Path

    def fetch(self) -> None:
        if self.synthetic:
            return
        try:
            files(self.home, self.dataset)
        except UserError:
            fetch(self.home, self.dataset)

    def write_synthetic(self, root: Path) -> Path:
        """Writes small files in the binary format to `root`, and returns it for use as `folder`."""
        return write_synthetic(root, self.dataset)

    @property
    def _state(self) -> str:
        return ragged.state_of(path for paths in files(self.home, self.dataset).values() for path in paths)


def files(root: Path, name: str) -> dict[str, list[Path]]:
    """The files of train and test. Raises UserError, with instructions, when one is missing."""
    archive = ARCHIVES[name]
    folder = root / archive.folder
    paths = {"train": [folder / file for file in archive.train], "test": [folder / archive.test]}
    for path in [*paths["train"], *paths["test"]]:
        if not path.is_file():
            raise UserError(
                f"{path} is missing; fetch the set with scripts/prepare.py, or unpack {archive.url} in {root}."
            )
    return paths


def read(paths: list[Path], name: str, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 32, 32, 3] and (fine) labels int64 [n] of the files, in their order.

    Raises UserError for a file that is truncated, is not CIFAR, or does not have `rows` rows (None: any number).
    """
    archive = ARCHIVES[name]
    tables = []
    for path in paths:
        record = archive.label_bytes + _PIXELS
        data = np.fromfile(path, np.uint8)
        if not len(data) or len(data) % record or (rows is not None and len(data) != rows * record):
            raise UserError(
                f"{path} has {len(data)} bytes, which is not the size of {name}; delete it and fetch the set again."
            )
        table = data.reshape(-1, record)
        if table[:, archive.label_bytes - 1].max() >= archive.classes:
            raise UserError(
                f"{path} holds a label of {archive.classes} or more, so it is not {name}; use the published one."
            )
        tables.append(table)
    table = np.concatenate(tables)
    images = table[:, archive.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), table[:, archive.label_bytes - 1].astype(np.int64)


def fetch(root: Path, name: str) -> None:
    """Downloads and checks the archive and extracts its files. Raises UserError when that fails."""
    archive = ARCHIVES[name]
    fetch_files(name, archive.url, f"md5:{archive.md5}", root, members(archive, root))


def members(archive: Archive, root: Path) -> dict[str, Path]:
    """The files of the data set in the archive, and where they go."""
    names = (f"{archive.folder}/{name}" for name in (*archive.train, archive.test))
    return {name: root / name for name in names}


def write_synthetic(root: Path, name: str, rows: int = 40) -> Path:
    """Writes small files in the binary format to `root` and returns `root`; each class has its own brightness."""
    archive = ARCHIVES[name]
    rng = np.random.default_rng(0)
    folder = root / archive.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*archive.train, archive.test):
        labels = np.arange(rows) % archive.classes
        pixels = rng.integers(0, 60, (rows, _PIXELS)) + (labels * 195 // archive.classes)[:, None]
        table = np.concatenate([np.repeat(labels[:, None], archive.label_bytes, 1), pixels], 1)
        table.astype(np.uint8).tofile(folder / file)
    return root
