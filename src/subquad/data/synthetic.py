"""Synthetic data: a few rows in the raw format of a data set, so that the real parser runs without its files."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def written_once(folder: Path, write: Callable[[Path], object]) -> Path:
    """Creates the folder with `write` unless it exists, and returns it; atomic, also with several processes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.exists():
            staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                write(staging)
                staging.rename(folder)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return folder
