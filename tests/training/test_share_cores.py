"""Runs on the same cores divide them among themselves."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from subquad.training.callbacks import share_cores
from subquad.training.callbacks.share_cores import ShareCores

NOTHING: Any = SimpleNamespace()


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(share_cores, "usable_cores", lambda: 4)
    monkeypatch.setattr(share_cores, "usable_threads", lambda: 4)
    monkeypatch.setattr(share_cores, "core_numbers", lambda: {0, 1, 2, 3})
    yield
    torch.set_num_threads(before)


def started(folder: Path) -> ShareCores:
    run = ShareCores(seconds=0.0, folder=str(folder))
    run.on_train_start(NOTHING, NOTHING)
    return run


def threads(run: ShareCores) -> int:
    run.on_train_batch_start(NOTHING, NOTHING, None, 0)
    return torch.get_num_threads()


def test_a_run_alone_has_all_cores(tmp_path: Path) -> None:
    assert threads(started(tmp_path)) == 4


def test_runs_divide_the_cores_and_get_them_back(tmp_path: Path) -> None:
    one, two, three = (started(tmp_path) for _ in range(3))
    assert threads(one) == 1
    three.teardown(NOTHING, NOTHING, "fit")
    assert threads(one) == threads(two) == 2
    two.teardown(NOTHING, NOTHING, "fit")
    assert threads(one) == 4
    one.teardown(NOTHING, NOTHING, "fit")
    assert [run.fewest for run in (one, two, three)] == [1, 2, None]
    assert not list(tmp_path.rglob("*.lock"))


def test_a_number_of_threads_that_the_user_sets_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)
    one, _ = started(tmp_path), started(tmp_path)
    assert threads(one) == 3


def test_a_run_on_other_cores_is_no_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = started(tmp_path)
    monkeypatch.setattr(share_cores, "core_numbers", lambda: {4, 5})
    two = started(tmp_path)
    assert threads(two) == 4
    monkeypatch.setattr(share_cores, "core_numbers", lambda: {0, 1, 2, 3})
    assert threads(one) == 4


@pytest.mark.slow
def test_a_killed_run_counts_no_more(tmp_path: Path) -> None:
    program = f"""
import os, sys
from subquad.training.callbacks import share_cores
share_cores.core_numbers = lambda: {{0}}
share_cores.ShareCores(folder={str(tmp_path)!r}).on_train_start(None, None)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    [left] = tmp_path.rglob("*.lock")
    assert threads(started(tmp_path)) == 4
    assert not left.exists()
