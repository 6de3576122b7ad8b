"""A sweep is killed halfway, and the same command continues it."""

import re
import subprocess
import time
from pathlib import Path

import pytest
from filelock import FileLock
from sweeps import REPRODUCE, page, reproduce, settings

from subquad import records

SEEDS = "seeds=[0]"
RUNS = 4


def kill_in_the_middle(outputs: Path, finished: int) -> None:
    """Starts the sweep and kills it when this many runs have finished."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*REPRODUCE, SEEDS], **quiet, **settings(outputs)) as process:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            if len(list(outputs.rglob(records.RESULT))) >= finished:
                break
            time.sleep(0.01)
        assert process.poll() is None, "the sweep ended before it was killed"
        process.kill()
    for lock in outputs.rglob(".lock"):  # remaining processes notice the kill and end
        with FileLock(lock, timeout=60):
            pass


@pytest.mark.slow
def test_the_second_start_finishes_it_and_trains_nothing_twice(tmp_path):
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    kill_in_the_middle(killed, 2)
    early = {path: path.read_bytes() for path in killed.rglob(records.RESULT)}
    assert 2 <= len(early) < RUNS
    shown = reproduce(killed, SEEDS)
    assert re.search(rf"{RUNS - len(early)} runs? (is|are) to be trained", shown)
    assert {path: path.read_bytes() for path in early} == early
    reproduce(undisturbed, SEEDS)
    ours, theirs = (
        {(r.fingerprint, r.seed): {**r.metrics, "steps": r.steps} for r in records.read_all(outputs)}
        for outputs in (killed, undisturbed)
    )
    assert len(ours) == RUNS
    assert ours.keys() == theirs.keys()
    for run, metrics in ours.items():  # to rounding: the number of threads depends on the other runs
        assert metrics == pytest.approx(theirs[run], rel=1e-4)
    assert page(killed) == page(undisturbed)
    assert "to be trained" not in reproduce(killed, SEEDS)
