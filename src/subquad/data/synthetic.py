"""Synthetic data: a few rows in the raw format of a data set, so that the real parser runs without its files."""

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from subquad.utils.atomic import staging_folder


def written_once(folder: Path, write: Callable[[Path], object]) -> Path:
    """Creates the folder with `write` unless it exists, and returns it; atomic, also with several processes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.exists():
            with staging_folder(folder) as staging:
                write(staging)
                staging.rename(folder)
    return folder
