"""The processor cores and threads that this process may use."""

import math
import os
from pathlib import Path

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def core_numbers() -> set[int]:
    """The numbers of the cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """The number of cores that this process may use, which a scheduler or a container may limit."""
    cores = len(core_numbers())
    try:
        quota, period = _CGROUP_QUOTA.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def cores_of_process(processes: int) -> int:
    """The cores of one of the processes of a run on this machine: those of a Slurm task, or an equal share."""
    task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(usable_threads(), int(task)) if task.isdigit() else max(1, usable_threads() // processes)


def usable_threads() -> int:
    """The number of threads that a run computes with: one per core, or OMP_NUM_THREADS if that is less."""
    return min(usable_cores(), chosen_threads() or usable_cores())


def chosen_threads() -> int | None:
    """The number of threads in OMP_NUM_THREADS, which the user or a sweep sets; None without a positive number."""
    number = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(number) or None if number.isdecimal() else None
