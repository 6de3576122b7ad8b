"""Files that are written completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path, several: bool = False) -> Iterator[Path]:
    """A temporary file beside `path` that replaces `path` when the block ends; missing folders are created.

    If the block raises, the temporary file is removed and `path` stays as it was.

    Args:
        path: the file to write.
        several: whether several processes may write the file at once; each then has a temporary file of its own, and
            the last one to finish wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{f'.{os.getpid()}' if several else ''}.partial")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
