"""Files that are written completely or not at all."""

import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from subquad.utils.errors import UserError

_OLD = 24 * 60 * 60
"""Seconds without a change after which a partial file is taken for that of a killed process."""


@contextmanager
def atomic_write(path: Path, several: bool = False) -> Iterator[Path]:
    """A temporary file beside `path` that replaces `path` when the block ends; missing folders are created.

    If the block raises, the temporary file is removed and `path` stays as it was. What a killed process leaves is
    overwritten by the next one, or with `several` removed a day later. Who may read the file follows the umask, also
    where a library writes it for its owner only, as safetensors does.

    Args:
        path: the file to write.
        several: whether several threads or processes, also of several machines, may write the file at once. Each then
            has its own temporary file, and the last one to finish determines the content.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{f'.{_own_name()}' if several else ''}.partial")
    temporary.unlink(missing_ok=True)
    temporary.touch()
    allowed = temporary.stat().st_mode
    temporary.unlink()
    try:
        yield temporary
        if (mode := temporary.stat().st_mode) | allowed != mode:
            temporary.chmod(mode | allowed)
        temporary.replace(path)
        if several:
            remove_old(path.parent, f".{escape(path.name)}.*.partial")
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def staging_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path` to fill and rename to it, removed when the block ends.

    Unlike that of `tempfile.mkdtemp`, who may read it follows the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.with_name(f".{path.name}-{_own_name()}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _own_name() -> str:
    """A name that no other thread, process or machine takes."""
    return f"{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"


def remove_old(folder: Path, pattern: str) -> None:
    """Removes the files and folders of a pattern that were last changed more than a day ago."""
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process removes them too
            if time.time() - path.stat().st_mtime > _OLD:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
