"""The page of what is trained now: states from the folders alone, also where files are missing."""

import json
import os
import socket
import time

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from subquad import records
from subquad.report.html import live_page
from subquad.report.html.live_page import write_live_page
from subquad.sweep.runner import SWEEPS


@pytest.fixture
def outputs(tmp_path):
    """A run that is trained, one that failed, one that was interrupted, and the list of their sweep."""
    runs = [tmp_path / "runs/lra/listops/dba" / f"{digit * 12}-s0" for digit in "abc"]
    for run in runs:
        (run / ".hydra").mkdir(parents=True)
        (run / ".lock").touch()
        (run / ".hydra/overrides.yaml").touch()
        config = {"task": {"monitor": "val/accuracy", "mode": "max"}, "trainer": {"max_steps": 40}}
        OmegaConf.save(OmegaConf.create(config), run / ".hydra/config.yaml")
        (run / records.HISTORY).write_text("step,epoch,val/accuracy\n5,0,0.25\n8,0,nan\n10,1,0.75\n")
    records.write_json(
        tmp_path / SWEEPS / "now.json",
        {"command": "reproduce.py table=dba/2", "host": socket.gethostname(), "process": os.getpid(),
         "runs": [str(run) for run in runs]},
    )  # fmt: skip
    records.write_error("It has no <data>.", "", runs[1])
    return tmp_path


def test_the_page_says_what_runs_what_failed_and_what_is_left(outputs):
    page = outputs / "live.html"
    with FileLock(outputs / "runs/lra/listops/dba/aaaaaaaaaaaa-s0/.lock"):
        assert write_live_page(page, outputs, 5) == "1 running, 1 waiting, 0 finished, 1 failed"
    text = page.read_text()
    assert '<progress max="1" value="0.25"' in text
    assert "val/accuracy 0.75, best 0.75" in text
    assert "nan" not in text
    assert "It has no &lt;data&gt;." in text
    assert "0 of 3 finished" in text
    assert '<meta http-equiv="refresh" content="5">' in text


def test_a_run_that_was_resumed_has_no_estimate(outputs):
    run = outputs / "runs/lra/listops/dba/aaaaaaaaaaaa-s0"
    started = time.time() - 100
    os.utime(run / ".hydra/overrides.yaml", (started, started))
    os.utime(run / ".lock", (started, started))
    assert live_page._running(run).left == "5 min 0 s"
    os.utime(run / ".lock", (started - 100, started - 100))
    assert live_page._running(run).left == ""


def test_a_sweep_whose_process_was_killed_is_left_out(outputs):
    path = outputs / SWEEPS / "now.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"process": 2**22 + 1}))
    assert write_live_page(outputs / "live.html", outputs, 5) == "0 running, 0 waiting, 0 finished, 1 failed"
