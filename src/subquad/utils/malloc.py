"""The C library's memory allocator: freed memory is kept for the next training step, not for another program."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_LARGEST, _NEVER = 2**31 - 1, -1  # the most that mallopt takes; trimming switched off
_SMALL = 2**16

KEPT = 2.5
"""How many times the peak of its live tensors a training run holds at most if freed memory is kept (measured: 2.0)."""


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that it frees, up to 2 GiB per tensor; returns whether it does.

    By default glibc returns the memory of large tensors to the kernel when they are freed, and every training step
    causes thousands of page faults to get it back: a fifth of the time of a step of large models. The process holds its
    peak memory until `return_freed_memory`, or until it ends. Environment variables of malloc that the user has set are
    respected. Does nothing except on Linux with glibc.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  absent from other C libraries
        return bool(library.mallopt(_MAP, _LARGEST) and library.mallopt(_TRIM, _NEVER))
    except (OSError, AttributeError, TypeError):
        return False


def return_large_tensors() -> None:
    """Undoes `keep_freed_memory` for large tensors: they are returned to the kernel as soon as they are freed.

    The process then holds little more than its live tensors, for up to a fifth more time; with the memory that it
    keeps, it holds up to twice as much, because what was freed has other sizes than what is needed.
    """
    return_freed_memory()
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MAP, _SMALL)
        library.mallopt(_TRIM, _SMALL)


@contextmanager
def spared_memory(spare: bool) -> Iterator[None]:
    """If `spare`, large tensors are returned as soon as they are freed inside the block."""
    if spare:
        return_large_tensors()
    try:
        yield
    finally:
        if spare:
            keep_freed_memory()


def return_freed_memory() -> None:
    """Returns the memory that is kept without being used, because tensors of other sizes would not fit into it."""
    with suppress(OSError, AttributeError, TypeError):  # absent from other C libraries
        ctypes.CDLL(None).malloc_trim(0)
