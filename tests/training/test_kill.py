"""A process is killed in the middle of an epoch, and the same command resumes the run."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from runs import identical, program, record_of, run_script, weights

from subquad import records

EPOCHS = (
    "task=uea/basic_motions", "attention=dba", "limits.epochs=6", "recipe.batch_size=4", "backbone.dim=32",
    "backbone.heads=4", "backbone.layers=2", "backbone.ffn=64", "trainer=cpu", "~callbacks.cores",
)  # fmt: skip
STEPS = (
    "task=lra/listops", "attention=luna", "scale=smoke", "limits.steps=60", "recipe.steps_per_epoch=10",
    "optimizer.lr=0.003", "scheduler.warmup=20", "trainer=cpu", "~callbacks.cores",
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data):
    found = {}
    for name, overrides in (("epochs", EPOCHS), ("steps", STEPS)):
        outputs = tmp_path_factory.mktemp(name) / "outputs"
        assert run_script(data, outputs, "train.py", *overrides).returncode == 0
        found[overrides] = record_of(outputs)
    return found


def kill_after(rows: int, data: Path, outputs: Path, *overrides: str) -> None:
    """Starts a run and kills it soon after its history has this many rows and a checkpoint has been written."""
    command, settings = program(data, outputs, "train.py", *overrides)
    with subprocess.Popen(command, **settings) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            written = any(len(records.read_history(path)) >= rows for path in outputs.rglob("metrics.csv"))
            if written and any(outputs.rglob("last.ckpt")):
                time.sleep(0.02)
                break
            time.sleep(0.001)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "rows"),
    [
        pytest.param(STEPS, [2, 4], id="steps"),
        *(pytest.param(*case, marks=pytest.mark.release) for case in ((STEPS, [1]), (EPOCHS, [1]), (EPOCHS, [2, 4]))),
    ],
)
def test_a_killed_run_started_again_ends_as_one_that_was_left_alone(data, outputs, undisturbed, overrides, rows):
    for number in rows:
        kill_after(number, data, outputs, *overrides)
    done = run_script(data, outputs, "train.py", *overrides)
    assert done.returncode == 0, done.stderr
    assert "Resuming from the last checkpoint" in done.stderr
    run, expected = record_of(outputs), undisturbed[overrides]
    assert (run / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()
    assert records.read(run).metrics == records.read(expected).metrics
    for name in ("best.ckpt", "last.ckpt"):
        assert identical(weights(run, name), weights(expected, name))


def living(group: int) -> list[str]:
    """The processes of a process group that are still running."""
    found = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return [pid for pid, its, state in rows if int(its) == group and not state.startswith("Z")]


def signal_after(rows: int, number: signal.Signals, data: Path, outputs: Path, *overrides: str) -> tuple[int, str]:
    """Sends a signal to all processes of a run soon after its history has this many rows.

    Returns its exit status and standard error.
    """
    command, settings = program(data, outputs, "train.py", *overrides)
    with subprocess.Popen(command, **settings, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if any(len(records.read_history(path)) >= rows for path in outputs.rglob("metrics.csv")):
                break
            time.sleep(0.001)
        assert len(living(process.pid)) >= 3, "no worker was there"
        if number == signal.SIGKILL:
            process.kill()  # not its data workers, which must end by themselves
        else:
            os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=60)
        while living(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not living(process.pid), "workers are left"
    return process.returncode, errors


@pytest.mark.slow
def test_signals_to_all_processes_with_workers_are_interruptions(data, outputs, undisturbed):
    overrides = (*EPOCHS, "data.num_workers=2")
    for rows, number, status in ((1, signal.SIGTERM, 130), (2, signal.SIGKILL, -9)):
        returned, errors = signal_after(rows, number, data, outputs, *overrides)
        assert returned == status, errors
        assert not any(outputs.rglob("error.json"))
    done = run_script(data, outputs, "train.py", *overrides)
    assert done.returncode == 0, done.stderr
    run, expected = record_of(outputs), undisturbed[EPOCHS]
    assert (run / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()
    assert identical(weights(run, "last.ckpt"), weights(expected, "last.ckpt"))
