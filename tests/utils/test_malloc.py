"""Freed memory is kept until it is returned."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from subquad.utils.malloc import keep_freed_memory, return_freed_memory

def resident():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))

assert keep_freed_memory()
before = resident()
tensors = [torch.ones(25_000_000) for _ in range(4)]
del tensors
kept = resident() - before
return_freed_memory()
print(kept, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_is_kept_until_it_is_returned(monkeypatch):
    for name in ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, returned = map(int, done.stdout.split())
    assert kept > 350, done.stdout  # MiB, of 381
    assert returned < 50, done.stdout
