"""How the C library keeps memory that a step frees and the next one asks for again."""

import ctypes
import os

_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_LARGEST, _NEVER = 2**31 - 1, -1  # the most that mallopt takes; trimming switched off


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that it frees, up to 2 GiB a tensor, and reports whether it does.

    By default glibc returns large tensors to the kernel as they are freed, and every step pays for thousands of page
    faults to get the same pages again: a fifth of a training step of large models. What the process has at its peak it
    keeps to its end. What the user set stays. Elsewhere than on Linux with glibc nothing happens.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  absent from other C libraries
        return bool(library.mallopt(_MAP, _LARGEST) and library.mallopt(_TRIM, _NEVER))
    except (OSError, AttributeError, TypeError):
        return False
