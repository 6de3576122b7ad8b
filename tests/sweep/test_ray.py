"""Runs as tasks of Ray on this machine: one of them is killed, one fails, and the same command trains none again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import ROOT, run_script

from subquad import records
from subquad.sweep.ray_tasks import check_room, check_settings, train_all
from subquad.utils.errors import UserError

WORDS = ("-m", "hydra/launcher=ray", "task=digits", "attention=dba")
SMOKE = ("scale=smoke", "limits.epochs=6", "seed=0,1", "backbone.dim=32,33")


def training(outputs: Path) -> list[int]:
    """The processes that train a run in this folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"paths.outputs={outputs}".encode() in words and b"backbone.dim=32" in words and b"-m" not in words[3:]:
            found.append(int(folder.name))
    return found


SETTINGS = {"address": None, "num_cpus": 1, "num_gpus": "auto", "memory_gb": None, "max_retries": 3}
NODE = {"Alive": True, "Resources": {"CPU": 2.0, "memory": 2.0**30}}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("num_cpus", 0), ("num_cpus", 1.5), ("num_gpus", -1), ("memory_gb", "abc"), ("max_retries", -2)],
)
def test_a_number_that_ray_does_not_take_is_refused(name, wrong):
    check_settings(SETTINGS)
    with pytest.raises(UserError, match=f"hydra.launcher.{name}={wrong} is not possible; give"):
        check_settings(SETTINGS | {name: wrong})


@pytest.mark.parametrize("large", [{"num_cpus": 3}, {"num_gpus": 0.3}, {"memory_gb": 2}])
def test_a_run_that_fits_no_machine_is_refused_and_waits_only_on_a_cluster(large, caplog):
    check_room(SETTINGS | {"num_cpus": 2, "memory_gb": 1}, [NODE])
    with pytest.raises(UserError, match=r"No machine of Ray has .* at once .*; lower hydra\.launcher"):
        check_room(SETTINGS | large, [NODE, NODE])
    check_room(SETTINGS | large | {"address": "auto"}, [NODE])
    assert "the runs wait until the cluster has one" in caplog.text


def test_an_address_where_nothing_listens_is_named_at_once():
    with pytest.raises(UserError, match=r"Ray does not answer at localhost:1 \(.*\); start it"):
        train_all([None], SETTINGS | {"address": "localhost:1"}, 0)


@pytest.mark.slow
def test_a_killed_run_resumes_a_failed_one_is_named_and_finished_ones_are_found(data, outputs, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # equal bits need equal threads
    folders = (f"paths.data={data}", f"paths.outputs={outputs}")
    command = [sys.executable, "train.py", *WORDS, *SMOKE, "trainer=cpu", *folders]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as sweep:
        deadline = time.monotonic() + 240
        while not list(outputs.rglob("last.ckpt")) and time.monotonic() < deadline:
            time.sleep(0.1)
        first, *_ = training(outputs)
        os.kill(first, signal.SIGKILL)
        said, _ = sweep.communicate(timeout=300)
    assert "failed: " in said
    assert "33 cannot be split into 4 heads" in said
    assert sweep.returncode == 1
    found = records.read_all(outputs / "runs")
    assert sorted(run.seed for run in found) == [0, 1]
    again = run_script(data, outputs, "train.py", *WORDS, *SMOKE[:-1], "backbone.dim=32")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("finished before, not trained again") == 2
    undisturbed = run_script(data, outputs / "plain", "train.py", *WORDS[2:], *SMOKE[:-2], "backbone.dim=32")
    assert undisturbed.returncode == 0, undisturbed.stderr
    [plain] = records.read_all(outputs / "plain")
    assert next(run for run in found if run.seed == 0).metrics == plain.metrics
