"""The memory that this process may take: what is free of the main memory, and its share of a GPU."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_SHARE = "SUBQUAD_MEMORY"
"""Environment variable with the resident bytes that a worker of a sweep may reach: its share of the memory."""
_ON_GPU = "SUBQUAD_RUNS_PER_GPU"
"""Environment variable with the number of runs that train on each GPU at a time."""


def free_memory() -> int | None:
    """Bytes that this process may still take; None where the system has no /proc.

    It is the least of the machine's available memory, of what the control groups of the process leave (Slurm,
    containers), of its limits (`ulimit -v`, `ulimit -d`), and of its share among the runs of a sweep.
    """
    try:
        available = _numbers(_PROC / "meminfo")["MemAvailable:"] * 1024
        own = _numbers(_PROC / "self/status")
    except (OSError, KeyError):
        return None
    return max(0, min([available, *_left_by_groups(), *_left_by_limits(own), *_left_of_share(own)]))


def memory_of_worker(workers: int) -> dict[str, str]:
    """Environment variables that give each of several processes, forked from this one, its share of the memory."""
    free = None if workers == 1 else free_memory()
    return {} if free is None else {_SHARE: str(_resident(_numbers(_PROC / "self/status")) + free // workers)}


def shared_gpu(runs: int) -> dict[str, str]:
    """Environment variables of a process that trains on a GPU beside others, `runs` in all."""
    return {_ON_GPU: str(runs)}


def share_of_gpu(memory: int) -> int:
    """The part of a GPU's bytes that is for this process."""
    runs = os.environ.get(_ON_GPU, "")
    return memory // max(1, int(runs)) if runs.isdecimal() else memory


def _left_of_share(own: dict[str, int]) -> Iterator[int]:
    if (share := os.environ.get(_SHARE, "")).isdecimal():
        yield int(share) - _resident(own)


def _resident(own: dict[str, int]) -> int:
    return own["VmRSS:"] * 1024


def _left_by_limits(own: dict[str, int]) -> Iterator[int]:
    limits = {"Max address space": "VmSize:", "Max data size": "VmData:"}
    with suppress(OSError):
        for line in (_PROC / "self/limits").read_text(encoding="utf-8").splitlines():
            for name, used in limits.items():
                soft = line.removeprefix(name).split()[:1]
                if line.startswith(name) and soft[0].isdecimal():
                    yield int(soft[0]) - own[used] * 1024


def _left_by_groups() -> Iterator[int]:
    """What each control group that holds this process leaves; its caches of files can be reclaimed and are free.

    A container may show the whole machine's path of its group, of which it has the last folders or none.
    """
    with suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            names = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
            )
            cached = "total_inactive_file" if controllers else "inactive_file"
            top = _CGROUPS / "memory" if controllers else _CGROUPS
            folder = Path(path.lstrip("/"))
            for group in (folder, *folder.parents):
                with suppress(OSError, ValueError):  # the file is missing, or holds the word max
                    limit, used = (int((top / group / name).read_text(encoding="utf-8")) for name in names)
                    yield limit - used + _numbers(top / group / "memory.stat").get(cached, 0)


def _numbers(path: Path) -> dict[str, int]:
    """The first words of lines whose second word is a number, with it."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
