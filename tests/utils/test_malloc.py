"""Freed memory is kept until the next network is measured."""

import subprocess
import sys

import pytest

SPARED = """
import torch
from subquad.utils.malloc import keep_freed_memory, spared_memory

def resident():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))

def use():
    tensors = [torch.ones(2_500_000) for _ in range(40)]

keep_freed_memory()
torch.ones(2_500_000)
before = resident()
with spared_memory(True):
    use()
    inside = resident() - before
use()
print(inside, resident() - before)
"""
PROGRAM = """
import torch
from subquad.results.measures import relative_memory
from subquad.specs import DataSpec
from subquad.utils.malloc import keep_freed_memory

def measure():
    spec = DataSpec(max_len=16, vocab=8, classes=2)
    relative_memory(["task=arena/listops", "attention=dba"], spec, ["attention=softmax"])

def resident():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))

assert keep_freed_memory()
measure()
before = resident()
tensors = [torch.ones(25_000_000) for _ in range(4)]
del tensors
kept = resident() - before
measure()
print(kept, resident() - before)
"""


def printed(program, monkeypatch):
    """The two numbers that a program prints, run without the user's settings of malloc."""
    for name in ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    return first, second


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_measured_network_finds_the_memory_that_others_left_returned(monkeypatch):
    kept, returned = printed(PROGRAM, monkeypatch)
    assert kept > 350  # MiB, of 381
    assert returned < 50


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_spared_memory_is_returned_as_soon_as_it_is_freed(monkeypatch):
    inside, after = printed(SPARED, monkeypatch)
    assert inside < 50  # MiB, of 381
    assert after > 350
