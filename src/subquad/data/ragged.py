"""Caches of sequences of unequal length: memory-mapped, checksummed and written atomically."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from subquad.utils.atomic import remove_old, staging_folder
from subquad.utils.errors import UserError

_ARRAYS = ("values", "offsets", "targets")


@dataclass(frozen=True, slots=True)
class Ragged:
    """N concatenated sequences.

    values: [total] token ids or [total, channels] real steps; offsets: int64 [N + 1], sequence i is
    values[offsets[i]:offsets[i + 1]]; targets: [N] class indices or real values.
    """

    values: np.ndarray
    offsets: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: tokens or time steps of each sequence."""
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> "Ragged":
        """The sequences of these indices, copied into memory in the given order."""
        sequences = [self[int(i)] for i in indices]
        if not sequences:
            return Ragged(self.values[:0], np.zeros(1, np.int64), self.targets[indices])
        return lay_out(sequences, self.targets[indices])


def lay_out(sequences: Sequence[np.ndarray], targets: np.ndarray, dtype: type[np.generic] | None = None) -> Ragged:
    """Concatenates sequences, converted to `dtype` if given."""
    offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    return Ragged(np.concatenate(sequences, dtype=dtype, casting="same_kind"), offsets, targets)


def write(folder: Path, splits: Mapping[str, Ragged], facts: Mapping[str, Any]) -> None:
    """Writes splits and JSON-serialisable facts to `folder`, replacing it only when everything is on disk.

    Raises UserError when the disk is full; incomplete files are removed.
    """
    try:
        with staging_folder(folder) as staging:
            checksums = {}
            for split, ragged in splits.items():
                for array in _ARRAYS:
                    path = staging / f"{split}.{array}.npy"
                    np.save(path, getattr(ragged, array), allow_pickle=False)
                    checksums[path.name] = _checksum(path)
            checksums["facts"] = _checksum_of(facts)
            meta = {"folder": folder.name, "facts": dict(facts), "splits": sorted(splits), "sha256": checksums}
            (staging / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True), encoding="utf-8")
            if folder.exists():
                shutil.rmtree(folder)
            staging.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, None):  # numpy reports a short write without a number
            raise UserError(
                f"The disk is full: {folder} could not be written; free some space and try again."
            ) from None
        raise


def prepare(folder: Path, make: Callable[[], tuple[Mapping[str, Ragged], Mapping[str, Any]]]) -> None:
    """Writes the result of `make` unless the cache exists; other processes wait until it is written."""
    if _exists(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        remove_old(folder.parent, f".{escape(folder.name)}-*")
        if not _exists(folder):
            write(folder, *make())


@dataclass(frozen=True, slots=True)
class Cache:
    """The content of a cache: the splits, the facts written with them, and a fingerprint of all bytes."""

    splits: dict[str, Ragged]
    facts: dict[str, Any]
    fingerprint: str


def read(folder: Path) -> Cache | None:
    """Memory-maps a cache, or returns None if it does not exist.

    Raises UserError when a file is missing or its checksum differs, or when the folder has another name than when it
    was written: the name stands for the settings and sources of the data. Of the processes of a run, the first of each
    machine compares the checksums; if it fails, all end.
    """
    if not _exists(folder):
        return None
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if (owner := meta.get("folder", folder.name)) != folder.name:  # caches of earlier versions have no name
            raise ValueError(f"it is that of {owner}")
        for name, expected in meta["sha256"].items() if _first_on_machine() else ():
            actual = _checksum_of(meta["facts"]) if name == "facts" else _checksum(folder / name)
            if actual != expected:
                raise ValueError(name)
        if {"facts", *(f"{split}.{a}.npy" for split in meta["splits"] for a in _ARRAYS)} != meta["sha256"].keys():
            raise ValueError("meta.json")
        splits = {
            split: Ragged(*(np.load(folder / f"{split}.{a}.npy", mmap_mode="r", allow_pickle=False) for a in _ARRAYS))
            for split in meta["splits"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"The cache {folder} is damaged or of another version ({error}); delete that folder and try again."
        ) from None
    splits = {
        k: dataclasses.replace(v, offsets=np.array(v.offsets), targets=np.array(v.targets)) for k, v in splits.items()
    }
    arrays = {name: digest for name, digest in meta["sha256"].items() if name != "facts"}
    return Cache(splits, meta["facts"], _checksum_of(arrays)[:16])


def read_prepared(folder: Path, task: str) -> Cache:
    """Like `read`, but raises UserError with the command that prepares the data if the cache does not exist."""
    cache = read(folder)
    if cache is None:
        raise UserError(
            f"Nothing is prepared in {folder}; run `python scripts/prepare.py task={task}` with the same settings."
        )
    return cache


def _exists(folder: Path) -> bool:
    return (folder / "meta.json").exists()


def _first_on_machine() -> bool:
    """Whether this is the first process of a run on this machine, as started by torchrun, Lightning or srun."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", 0))) == 0


def state_of(paths: Iterable[Path], home: Path | None = None) -> str:
    """Eight hexadecimal digits that change with the name, size or modification time of any of the files.

    The name is the path below `home`, if given.
    """
    states = [
        (str(path.relative_to(home)) if home else path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in paths
    ]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:8]


def _checksum_of(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
