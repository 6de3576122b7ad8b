"""The progress of a sweep is read from the folders of its runs."""

import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from subquad import records
from subquad.results.cells import RunSpec
from subquad.sweep.monitor import Follower, State, short, step
from subquad.sweep.progress import Progress, Shown
from subquad.sweep.runner import _how_to_continue, _job_lines, _report_failures

START = 1_000_000_000.0


@pytest.fixture
def jobs(tmp_path):
    return [
        RunSpec((f"seed={s}",), tmp_path / "runs/lra/text" / a / f"0123456789ab-s{s}")
        for a in ("dba", "softmax")
        for s in (0, 1)
    ]


def put(job, name, at, text="{}"):
    path = job.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (START + at, START + at))


def begin(job, at):
    put(job, ".hydra/overrides.yaml", at)


def states(follower, jobs):
    return [follower.states[job.folder].value for job in jobs]


def test_states_are_those_of_this_sweep(jobs):
    begin(jobs[0], -50)
    put(jobs[0], records.ERROR, -40, '{"message": "old"}')
    put(jobs[3], records.RESULT, -40)
    follower = Follower(jobs, START)
    assert follower.look() == []
    assert states(follower, jobs) == ["waiting", "waiting", "waiting", "finished"]
    begin(jobs[0], 1)
    begin(jobs[1], 2)
    assert [change.job for change in follower.look()] == jobs[:2]
    put(jobs[0], records.ERROR, 5, '{"message": "no memory"}')
    put(jobs[1], records.RESULT, 12)
    [failed, finished] = follower.look()
    assert (failed.state, finished.state, finished.seconds) == (State.FAILED, State.FINISHED, 10)
    assert states(follower, jobs) == ["failed", "finished", "waiting", "finished"]
    begin(jobs[0], 20)  # tried again
    put(jobs[0], records.RESULT, 21)
    follower.look()
    assert states(follower, jobs)[0] == "finished"


def test_a_run_has_finished_when_its_evaluations_are_there(tmp_path):
    job = RunSpec(("seed=0",), tmp_path / "0123456789ab-s0", evaluations=({"multiply": 2},))
    follower = Follower([job], START)
    begin(job, 1)
    put(job, records.RESULT, 5)
    [change] = follower.look()
    assert change.state is State.RUNNING
    put(job, records.evaluation_place(job.folder, {"multiply": 2}).relative_to(job.folder), 8)
    [change] = follower.look()
    assert (change.state, change.seconds) == (State.FINISHED, 7)


def test_time_left_is_that_of_runs_alike_shared_by_those_that_run(jobs):
    follower = Follower(jobs, START)
    assert follower.seconds_left() is None
    begin(jobs[0], 0)
    put(jobs[0], records.RESULT, 100)
    begin(jobs[2], 100)
    put(jobs[2], records.RESULT, 120)
    follower.look()
    assert follower.seconds_left() == 120  # one more run of each task, one after the other
    begin(jobs[1], 130)
    begin(jobs[3], 130)
    follower.look()
    assert follower.seconds_left() == 60
    put(jobs[1], records.RESULT, 230)
    follower.look()
    assert follower.seconds_left() == 20  # the time of a similar run, whatever the others took


def test_a_worker_between_two_runs_is_counted(jobs):
    follower = Follower(jobs, START)
    begin(jobs[0], 0)
    begin(jobs[2], 0)
    follower.look()
    put(jobs[0], records.RESULT, 100)
    follower.look()
    assert follower.seconds_left() == 150  # three more runs, two at a time


def test_steps_are_those_of_the_last_row(jobs):
    assert step(jobs[0]) == 0
    put(jobs[0], "metrics.csv", 0, "epoch,step,train/loss\n" + "".join(f"0,{i},0.5\n" for i in range(2000)))
    assert step(jobs[0]) == 1999
    put(jobs[0], "metrics.csv", 0, "epoch,step\n")
    assert step(jobs[0]) == 0


def test_a_cell_in_short(jobs):
    def said(*found):
        return short({job.folder: state for job, state in zip(jobs, found, strict=False)}, jobs[: len(found)])

    assert said(State.WAITING, State.WAITING) == "."
    assert said(State.FINISHED, State.RUNNING, State.FAILED) == "1/3>!"
    assert said(State.FINISHED, State.FINISHED) == "2/2"


def shown(jobs, terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, height=40, highlight=False)
    cells = {("DBA", "Text"): jobs[:2], ("Softmax", "Text"): jobs[2:]}
    with Progress(Follower(jobs, START), [Shown("dba/2", cells)], console) as progress:
        begin(jobs[0], 1)
        progress.look()
        put(jobs[0], records.RESULT, 4)
        begin(jobs[1], 4)
        put(jobs[1], records.ERROR, 6, '{"message": "no memory"}')
        begin(jobs[2], 7)
        put(jobs[2], "metrics.csv", 8, "step\n1200\n")
        progress.look()
    return out.getvalue(), progress.summary()


def test_without_a_terminal_each_end_is_a_line(jobs):
    told, summary = shown(jobs, terminal=False)
    assert told.splitlines() == [
        "1/4 dba on lra/text, seed 0 (012345) finished in 3 s, about 6 s left",
        "2/4 dba on lra/text, seed 1 (012345) failed: no memory",
    ]
    assert summary == "1 of 4 runs finished, 1 running, 1 failed, 1 left; about 6 s left"


def test_in_a_terminal_a_table_is_renewed(jobs):
    told, _ = shown(jobs, terminal=True)
    for part in ("1 of 4 runs finished", "DBA", "Text", "1/2!", "0/2>", "softmax on lra/text, seed 0", "1,200"):
        assert part in told


def test_runs_that_others_start_from_go_first(tmp_path):
    start = RunSpec(("a", "seed=0"), tmp_path / "a")
    apart = RunSpec(("b", "seed=0"), tmp_path / "b", init_from=RunSpec(("gone",), tmp_path / "gone"))
    after = RunSpec(("c", "seed=0"), Path("c"), init_from=start, evaluations=({"multiply": 2},))
    assert _job_lines([start, after, apart]) == (
        '["a", "seed=0"]\n["b", "seed=0"]\n\n["c", "seed=0", "evaluate=[{multiply:2}]"]\n'
    )


def test_who_stops_a_sweep_on_a_cluster_is_told_how_to_end_its_jobs(tmp_path):
    log = tmp_path / "sweep.log"
    log.write_text("Interrupted. The jobs stay in the queue; to cancel them: scancel 7\nShutting down\n")
    assert _how_to_continue(log) == "The jobs stay in the queue; to cancel them: scancel 7"
    log.write_text("Shutting down\n")
    assert _how_to_continue(log) == "Nothing is lost; the same command continues from here."


def test_a_failure_is_named_with_the_cells_that_need_the_run(capsys, tmp_path):
    job = SimpleNamespace(command=("attention=dba", "evaluate=[{multiply:4}]"), folder=tmp_path)
    shown = [Shown("dba/3", {("DBA", "Heartbeat"): [job], ("Luna", "Heartbeat"): []})]
    _report_failures(Console(), {job.command: "killed"}, SimpleNamespace(jobs=[job]), shown, 1, tmp_path / "log")
    assert capsys.readouterr().out.startswith(
        "Failed (dba/3 DBA / Heartbeat): killed\n"
        "  python train.py attention=dba 'evaluate=[{multiply:4}]'\n1 of 1 run failed"
    )
