"""Downloads files and archives, and takes named files out of archives, and nothing else."""

import shutil
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError

LARGEST = 8 * 2**30
"""Largest unpacked size of a file in bytes, above that of every published one; others are made to fill the disk."""
FAILURES = (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, tarfile.TarError)
"""What a download and `take` raise."""


def retrieve(url: str, folder: Path, known_hash: str | None, name: str | None = None) -> Path:
    """Downloads a file to a folder, unless it is there, and shows the progress; raises one of `FAILURES`.

    known_hash: such as "md5:…", None where none is published. name: of the file, by default that at the end of the URL.
    """
    import pooch  # needed by `scripts/prepare.py` only

    folder.mkdir(parents=True, exist_ok=True)
    name = name or PurePosixPath(url).name
    return Path(pooch.retrieve(url, known_hash=known_hash, fname=name, path=folder, progressbar=True))


def fetch_files(what: str, url: str, known_hash: str, folder: Path, files: Mapping[str, Path]) -> None:
    """Downloads an archive and takes files out of it. Raises UserError, with instructions, if that fails."""
    try:
        take(retrieve(url, folder, known_hash), files)
    except FAILURES as error:
        raise UserError(
            f"{what} could not be fetched from {url} ({error}); download it elsewhere and unpack it in {folder}."
        ) from None


def take(archive: Path, files: Mapping[str, Path]) -> None:
    """Writes files of a zip or tar archive to the given paths, each atomically.

    Args:
        archive: the archive; its kind is recognised by its content.
        files: path to write by the end of the name in the archive, as in "train.tsv" or "SST-2/train.tsv".

    Raises:
        KeyError: the archive has no regular file of a name.
        ValueError: a file is larger than `LARGEST`.
        Others of `FAILURES`: the archive is damaged.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            found = {member.filename: member for member in members.infolist() if not member.is_dir()}
            for name, path in files.items():
                member = found[_match(name, found)]
                with members.open(member) as source:
                    _write(source, member.file_size, path)
        return
    with tarfile.open(archive) as packed:
        regular = {member.name: member for member in packed.getmembers() if member.isreg()}
        for name, path in files.items():
            entry = regular[_match(name, regular)]
            content = packed.extractfile(entry)
            assert content is not None
            _write(content, entry.size, path)


def _match(name: str, found: Mapping[str, object]) -> str:
    """The first name in an archive that ends with the parts of `name`; raises KeyError if there is none."""
    parts = PurePosixPath(name).parts
    for full in found:
        if PurePosixPath(full).parts[-len(parts) :] == parts:
            return full
    raise KeyError(name)


def _write(source: IO[bytes], size: int, path: Path) -> None:
    if size > LARGEST:
        raise ValueError(f"{path.name} has {size:,} bytes, which no published file has")
    with atomic_write(path) as temporary, temporary.open("wb") as target:
        shutil.copyfileobj(source, target)
