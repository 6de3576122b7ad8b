"""Standard output whose reader may end before the program does."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class _Output(io.TextIOWrapper):
    """Standard output that ends the process with status 141, as the shell does, when its reader has ended."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            _end()

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            _end()


def _end() -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
    raise SystemExit(141)


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """Ends the process quietly when nothing reads its output any more, as in `subquad plan table=all | head -1`."""
    if type(sys.stdout) is io.TextIOWrapper:
        out = sys.stdout
        sys.stdout = _Output(out.buffer, out.encoding, out.errors, line_buffering=out.line_buffering)
    try:
        yield
    finally:
        sys.stdout.flush()
