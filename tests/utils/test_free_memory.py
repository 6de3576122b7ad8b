"""The memory that a process may take, read from made-up /proc and /sys trees."""

import pytest

from subquad.utils import free_memory as module
from subquad.utils.free_memory import free_memory, memory_of_worker

GIB = 2**30
STATUS = "Name:\tpython\nVmSize:\t3145728 kB\nVmRSS:\t1048576 kB\nVmData:\t2097152 kB\n"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max data size             {data}               unlimited            bytes
Max address space         {space}              unlimited            bytes
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes files of a machine with 16 GiB of available memory, and others by their paths."""
    monkeypatch.setattr(module, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(module, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.delenv("SUBQUAD_MEMORY", raising=False)

    def write(files=(), data="unlimited", space="unlimited"):
        texts = {
            "proc/meminfo": "MemTotal:  33554432 kB\nMemAvailable:  16777216 kB\n",
            "proc/self/status": STATUS,
            "proc/self/limits": LIMITS.format(data=data, space=space),
        }
        for name, text in (texts | dict(files)).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(str(text))

    return write


def group(folder, limit, used, cached, old=False):
    """Files of a control group, of version 1 if it is old."""
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
    stat = f"inactive_file {cached // 2 if old else cached}\ntotal_inactive_file {cached}\n"
    texts = (*zip(names, (limit, used), strict=True), ("memory.stat", stat))
    return {f"cgroup/{folder}/{name}": text for name, text in texts}


def test_available_memory_counts_where_nothing_limits_the_process(machine):
    machine()
    assert free_memory() == 16 * GIB


def test_the_tightest_group_above_the_process_counts_and_its_file_caches_are_free(machine):
    files = group("job", 8 * GIB, 5 * GIB, GIB) | group("job/step", "max", 4 * GIB, 0) | group(".", 12 * GIB, GIB, 0)
    machine(files | {"proc/self/cgroup": "0::/job/step/task\n"})
    assert free_memory() == 4 * GIB


def test_groups_of_version_1_and_of_a_container_that_shows_the_paths_of_its_host(machine):
    of_container = {"proc/self/cgroup": "5:cpu:/elsewhere\n4:memory,hugetlb:/docker/abc\n0::/\n"}
    machine(of_container | group("memory", 6 * GIB, 3 * GIB, 2 * GIB, old=True))
    assert free_memory() == 5 * GIB


@pytest.mark.parametrize(("limits", "left"), [({"space": 4 * GIB}, 1), ({"data": 5 * GIB}, 3), ({"space": GIB}, 0)])
def test_limits_of_the_shell_count_without_what_the_process_has(machine, limits, left):
    machine(**limits)
    assert free_memory() == left * GIB


def test_a_worker_has_its_share_beyond_what_it_was_forked_with(machine, monkeypatch):
    machine()
    for name, value in memory_of_worker(4).items():
        monkeypatch.setenv(name, value)
    assert free_memory() == 4 * GIB
    machine({"proc/self/status": STATUS.replace("1048576", "4194304")})
    assert free_memory() == GIB
    assert memory_of_worker(1) == {}


def test_other_systems_do_not_say_what_is_free(machine):
    assert free_memory() is None
    assert memory_of_worker(4) == {}
