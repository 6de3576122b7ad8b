"""How many processor cores there are to use."""

import math
import os
from pathlib import Path

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def core_numbers() -> set[int]:
    """The cores this process may run on, by number."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Cores this process may use: a scheduler's or container's share, which can be fewer than the machine has."""
    cores = len(core_numbers())
    try:
        quota, period = _CGROUP_QUOTA.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def usable_threads() -> int:
    """Threads for a run to compute with: one a core, or OMP_NUM_THREADS where that is less."""
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(usable_cores(), int(limit)) if limit.isdigit() and int(limit) else usable_cores()
