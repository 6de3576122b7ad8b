"""Compiles a kernel at its first use and keeps what the compiler made."""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

FLAGS = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The functions of `<name>.cpp` beside this file; None where kernels are off or there is no way to them.

    Raises UserError where SUBQUAD_KERNELS is neither "on" nor "off".
    """
    switch = os.environ.get("SUBQUAD_KERNELS") or "on"
    if switch not in ("on", "off"):
        raise UserError(f'SUBQUAD_KERNELS is "{switch}"; write on or off, or leave it unset.')
    if switch == "off" or sys.platform != "linux":
        return None
    try:
        compiler = _compiler()
        if compiler is None:
            log.info("There is no g++, so that torch's own operators run in place of the kernel %s.", name)
            return None
        found = _load(name, compiler)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:  # no home, CXX with half a quote
        said = str(getattr(error, "stderr", None) or error).strip()
        log.warning(
            "Kernel %s cannot be compiled or loaded, so that torch's own operators run, which give the same and take "
            "longer. SUBQUAD_KERNELS=off silences this, CXX names another compiler, XDG_CACHE_HOME another folder for "
            "what it makes. It said: %s", name, said,
        )  # fmt: skip
        return None
    _in_use.add(name)
    return found


def _load(name: str, compiler: list[str]) -> ctypes.CDLL:
    """The compiled kernel; compiles it where it is not there or cannot be loaded."""
    source = Path(__file__).with_name(f"{name}.cpp")
    place = cache_folder() / f"{name}-{_fingerprint(source, compiler)}.so"
    if place.exists():
        try:
            return ctypes.CDLL(str(place))
        except OSError:  # half of it was written, or the C library is another one now
            log.info("%s cannot be loaded and is compiled again.", place)
    with atomic_write(place, several=True) as partial:
        command = [*compiler, *FLAGS, str(source), "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return ctypes.CDLL(str(place))


_in_use: set[str] = set()


def in_use() -> list[str]:
    """Kernels that this process has loaded so far."""
    return sorted(_in_use)


_allowed: ContextVar[bool] = ContextVar("kernels allowed", default=True)


@contextmanager
def torchs_own() -> Iterator[None]:
    """Leaves all to torch's operators inside the block, for who counts what they do."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> bool:
    """Whether kernels may run here."""
    return _allowed.get()


def cache_folder() -> Path:
    """Where compiled kernels lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "subquad" / "kernels"


def _compiler() -> list[str] | None:
    """The words that call GCC's C++ compiler: what CXX says, else g++ where it is installed."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen if shutil.which(chosen[0]) else None
    return ["g++"] if shutil.which("g++") else None


def _fingerprint(source: Path, compiler: list[str]) -> str:
    """Differs where the compiled kernel would: machines of many kinds may share one cache folder."""
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, timeout=60).stdout
    code = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.h")))]
    parts = [*code, " ".join([*compiler, *FLAGS]).encode(), version, _processor()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    """What the processor is and can do."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join([platform.machine(), *sorted(told)]).encode()
