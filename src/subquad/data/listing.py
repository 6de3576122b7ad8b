"""Which files of a folder are data."""

import os
from pathlib import Path


def files_below(folder: Path, ending: str = "") -> list[Path]:
    """The sorted files below a folder whose names have this ending in small or capital letters, behind links too.

    Left out are those that `is_data` leaves out, such as .ipynb_checkpoints and the ._ files of macOS.
    """
    found, seen = [], set()
    for place, folders, files in os.walk(folder, followlinks=True):
        here = os.stat(place)
        folders[:] = () if (here.st_dev, here.st_ino) in seen else (name for name in folders if is_data(name))
        seen.add((here.st_dev, here.st_ino))
        found += [Path(place, name) for name in files if is_data(name) and name.lower().endswith(ending)]
    return sorted(found)


def is_data(name: str) -> bool:
    """Whether a name in a folder of data is neither hidden nor a file that macOS or Windows adds to folders."""
    return not name.startswith(".") and name not in ("__MACOSX", "Thumbs.db", "desktop.ini")
