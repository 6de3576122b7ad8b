"""Compiles kernels at their first use and caches the compiled libraries."""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

FLAGS = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]


_building = threading.Lock()


def library(name: str) -> ctypes.CDLL | None:
    """The compiled library of `<name>.cpp` in this folder; None if kernels are off or it cannot be compiled or loaded.

    Threads that need it at the same time wait for the first one. Raises UserError if SUBQUAD_KERNELS is neither "on"
    nor "off".
    """
    with _building:
        return _library(name)


@cache
def _library(name: str) -> ctypes.CDLL | None:
    switch = os.environ.get("SUBQUAD_KERNELS") or "on"
    if switch not in ("on", "off"):
        raise UserError(f'SUBQUAD_KERNELS is "{switch}"; write on or off, or leave it unset.')
    if switch == "off" or sys.platform != "linux":
        return None
    try:
        compiler = _compiler()
        if compiler is None:
            log.info("There is no g++, so torch's operators run instead of the kernel %s.", name)
            return None
        compiled = _load(name, compiler)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:  # no home, unmatched quote in CXX
        message = str(getattr(error, "stderr", None) or error).strip()
        log.warning(
            "Kernel %s cannot be compiled or loaded, so torch's operators run instead, with the same results but "
            "slower. SUBQUAD_KERNELS=off silences this warning, CXX sets another compiler, SUBQUAD_KERNEL_CACHE "
            "another cache folder. The error: %s", name, message,
        )  # fmt: skip
        return None
    _in_use.add(name)
    return compiled


def _load(name: str, compiler: list[str]) -> ctypes.CDLL:
    """Loads a kernel from the cache; compiles it first if it is missing, incomplete or cannot be loaded."""
    source = Path(__file__).with_name(f"{name}.cpp")
    path = cache_folder() / f"{name}-{_fingerprint(source, compiler)}.so"
    if path.exists() and _is_whole(path):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # the C library has changed
            log.info("%s cannot be loaded and is compiled again.", path)
    with atomic_write(path, several=True) as partial:
        command = [*compiler, *FLAGS, str(source), "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        content = partial.read_bytes()
        partial.write_bytes(content + hashlib.sha256(content).digest())
    return ctypes.CDLL(str(path))


def _is_whole(path: Path) -> bool:
    """Whether a file ends with the hash of what precedes it; an incomplete library ends the process that loads it."""
    content = path.read_bytes()
    return content[-32:] == hashlib.sha256(content[:-32]).digest()


_in_use: set[str] = set()


def in_use() -> list[str]:
    """Kernels that this process has loaded so far."""
    return sorted(_in_use)


_allowed: ContextVar[bool] = ContextVar("kernels allowed", default=True)


@contextmanager
def torchs_own() -> Iterator[None]:
    """Disables the kernels inside the block, so that all operations run, and can be counted, as torch's operators."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> bool:
    """Whether kernels may run in this context (see `torchs_own`)."""
    return _allowed.get()


def cache_folder() -> Path:
    """Folder of the compiled kernels."""
    if own := os.environ.get("SUBQUAD_KERNEL_CACHE"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "subquad" / "kernels"


def _compiler() -> list[str] | None:
    """The command of the C++ compiler: the value of CXX, or g++; None if there is neither."""
    return shlex.split(os.environ.get("CXX", "")) or (["g++"] if shutil.which("g++") else None)


def _fingerprint(source: Path, compiler: list[str]) -> str:
    """Fingerprint of everything that affects the compiled kernel; different machines may share a cache folder."""
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, timeout=60).stdout
    code = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.h")))]
    parts = [*code, " ".join([*compiler, *FLAGS]).encode(), version, _processor()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    """Model and features of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join([platform.machine(), *sorted(facts)]).encode()
