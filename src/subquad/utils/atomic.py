"""Files that are written completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path, several: bool = False) -> Iterator[Path]:
    """A temporary file beside `path` that replaces `path` when the block ends; missing folders are created.

    If the block raises, the temporary file is removed and `path` stays as it was.

    Args:
        path: the file to write.
        several: whether several processes may write the file at once. Each then has its own temporary file, and the
            last process to finish determines the content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{f'.{os.getpid()}' if several else ''}.partial")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
