"""What a record says of its origin: the commit of the code that computed, and the memory of the run alone."""

import re
import subprocess
import sys

import pytest

from subquad.measure import machine


@pytest.fixture(autouse=True)
def _as_at_the_start():
    machine.source.cache_clear()
    yield
    machine.source.cache_clear()


@pytest.mark.parametrize(
    ("start", "end", "commit"),
    [
        (("abc", "1"), ("abc", "1"), "abc"),
        (("abc", "1"), ("def", "1"), "abc"),  # a commit of other files
        (("abc", "1"), ("def", "2"), "abc+changes"),
        (("abc+changes", "1"), ("def", "2"), "abc+changes"),
        (("unknown", ""), ("unknown", ""), "unknown"),
    ],
)
def test_the_commit_is_that_of_the_code_that_computed(monkeypatch, start, end, commit):
    states = [start, end]
    monkeypatch.setattr(machine, "_source", lambda: states.pop(0))
    machine.source()
    assert machine.facts()["commit"] == commit


def test_the_source_of_a_checkout_has_a_commit():
    commit, content = machine.source()
    assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?", commit) or (commit, content) == ("unknown", "")


PEAK = """
import torch
from subquad.measure.memory import process_peak, reset_peak

def peak():
    return process_peak(torch.device("cpu"))["peak_memory_mib"]

"""
PARENT = """
import subprocess, sys
large = torch.ones(2**27)
print(peak())
subprocess.run([sys.executable, "-c", {child!r}], check=True)
del large
reset_peak(torch.device("cpu"))
print(peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot reset the peak")
def test_the_peak_is_that_of_the_process_and_counts_from_its_reset():
    program = PEAK + PARENT.format(child=f"{PEAK}print(peak())")
    done = subprocess.run([sys.executable, "-u", "-c", program], capture_output=True, text=True, check=True)
    own, child, later = map(float, done.stdout.split())
    assert child < own - 400
    assert later < own - 400
