"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path, several: bool = False) -> Iterator[Path]:
    """A place beside `path` to write to, which takes the place of `path` when the block ends; folders are made.

    Where the block or the disk fails the place is removed, and what was there before stays. `several`: processes may
    write the file at once; each has a place of its own then, and the last one wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{path.name}{f'.{os.getpid()}' if several else ''}.partial")
    try:
        yield place
        place.replace(path)
    finally:
        place.unlink(missing_ok=True)
