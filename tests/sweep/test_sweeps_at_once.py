"""Two commands train the same table at the same time: the second waits for the runs of the first."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock
from runs import TINY, composed, finish, trained

from subquad import records
from subquad.results.cells import RunSpec
from subquad.sweep import runner

BUSY = "Another process is training this run right now"


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path / "outputs"))
    overrides = ("task=digits", "recipe=small_vit")
    jobs = [
        RunSpec((*overrides, f"seed={s}"), tmp_path / f"outputs/runs/digits/dba/0123456789ab-s{s}") for s in range(3)
    ]
    for job in jobs:
        job.folder.mkdir(parents=True)
    return jobs


def test_sweeps_of_one_second_have_a_log_each(monkeypatch):
    monkeypatch.setattr(runner, "now", lambda: "2026-01-01T00:00:00+00:00")
    own = runner._log_name()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert runner._log_name() != own


def other_command(job, monkeypatch, finishes: bool) -> None:
    """Locks a run's folder as another command would, and ends while this one waits."""
    lock = FileLock(job.folder / ".lock")
    lock.acquire()

    def end(_: float) -> None:
        if finishes:
            finish(job, 0.5)
        lock.release()

    monkeypatch.setattr(time, "sleep", end)


def sweeps(monkeypatch, *ends: tuple[int, dict]) -> list[list[RunSpec]]:
    """Replaces successive multiruns by these results; returns the jobs that each multirun was given."""
    given: list[list[RunSpec]] = []

    def swept(jobs, *_):
        given.append(list(jobs))
        return ends[len(given) - 1]

    monkeypatch.setattr(runner, "_run_sweep", swept)
    return given


def test_a_run_of_another_command_is_waited_for_and_is_no_failure(jobs, monkeypatch, capsys):
    finish(jobs[0], 0.5)
    finish(jobs[1], 0.5)  # by the other command, after this one failed to lock it
    other_command(jobs[2], monkeypatch, finishes=True)
    given = sweeps(monkeypatch, (1, {jobs[1].command: BUSY, jobs[2].command: BUSY}))
    assert runner.train_all(jobs) is False
    assert given == [jobs]
    assert jobs[2].finished
    said = capsys.readouterr().out
    assert "Another command is training 2 of these runs" in said
    assert "Failed" not in said


def test_what_another_command_leaves_is_trained_and_real_failures_stay(jobs, monkeypatch, capsys):
    finish(jobs[0], 0.5)
    other_command(jobs[1], monkeypatch, finishes=False)  # killed
    given = sweeps(monkeypatch, (1, {jobs[1].command: BUSY, jobs[2].command: "no memory"}), (0, {}))
    assert runner.train_all(jobs) is True
    assert given == [jobs, [jobs[1]]]
    assert not runner.is_locked(jobs[1].folder)
    said = capsys.readouterr().out
    assert "Failed: no memory" in said
    assert BUSY not in said


def test_a_run_waits_for_a_start_that_another_command_trains(jobs):
    later = RunSpec(("seed=9",), Path(f"{jobs[0].folder}9"), init_from=jobs[0])
    lock = FileLock(jobs[0].folder / ".lock")
    with ExitStack() as stack:
        stack.enter_context(lock)
        assert runner.trained_elsewhere([later, jobs[0], jobs[1]]) == [later, jobs[0]]
    assert runner.trained_elsewhere([later, jobs[0], jobs[1]]) == []


def test_what_was_finished_while_a_command_started_is_not_trained_again(data, outputs):
    config = composed(data, outputs, "task=uea/basic_motions", "scale=smoke", *TINY)
    run = Path(config.paths.run)
    finish(RunSpec((), run), 0.25)
    before = (run / records.RESULT).read_bytes()
    assert trained(config).metrics == {"test/accuracy": 0.25}
    assert (run / records.RESULT).read_bytes() == before
    assert not (run / "checkpoints").exists()


def test_waiting_can_be_stopped(jobs, monkeypatch):
    sweeps(monkeypatch, (1, {jobs[2].command: BUSY}))
    monkeypatch.setattr(time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with (
        FileLock(jobs[2].folder / ".lock"),
        pytest.raises(SystemExit, match=r"Stopped: .*the same command continues from here"),
    ):
        runner.train_all(jobs)
