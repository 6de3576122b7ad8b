"""Runs of a sweep in processes of their own: failures end one run, interrupts end all."""

import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import pytorch_lightning as pl
from runs import TINY, composed, identical, trained, weights

from subquad import records
from subquad.sweep import workers
from subquad.sweep.workers import Workers, run_all, workers_for
from subquad.utils.cores import usable_threads
from subquad.utils.errors import UserError
from subquad.utils.free_memory import free_memory, share_of_gpu

WORDS = ("task=uea/basic_motions", "attention=dba", "scale=smoke", *TINY)
ONE = {"devices": 1, "num_nodes": 1, "accelerator": "auto"}


class Killed(pl.Callback):
    """Kills the process at its first training step, as a kernel does that is short of memory."""

    def on_train_batch_start(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)


pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.mark.slow
def test_a_crash_is_the_failure_of_its_run_alone(data, outputs, tmp_path, capsys):
    def task(*words):
        def run(tell):
            faulthandler.disable()  # enabled by pytest
            config = composed(data, outputs, *WORDS, *words)
            tell(Path(config.paths.run))
            sys.stdout.write(words[0])
            return trained(config).metrics

        return run

    crash = "+callbacks.crash._target_=os.abort"
    begun, ended = [], {}
    tasks = {4: task("seed=0"), 5: task("seed=1", crash), 6: task("seed=2")}
    run_all(tasks, Workers(2, 1), begun.append, lambda number, *end: ended.update({number: end}))
    assert begun == [4, 5, 6]
    assert ended[5] == (None, "The process of this run was ended by SIGABRT.")
    [error] = outputs.rglob(records.ERROR)
    assert json.loads(error.read_text())["message"] == ended[5][1]
    assert "#4 | seed=0\n" in capsys.readouterr().out
    for number, seed in ((4, 0), (6, 2)):
        alone = composed(data, tmp_path / "alone", *WORDS, f"seed={seed}")
        assert ended[number] == (trained(alone).metrics, None)
        run = Path(alone.paths.run)
        for name in ("best.ckpt", "last.ckpt"):
            assert identical(weights(outputs / run.relative_to(tmp_path / "alone"), name), weights(run, name))


@pytest.mark.slow
def test_a_killed_run_is_named_with_its_estimate_and_the_others_go_on(data, outputs):
    def task(*words):
        def run(tell):
            config = composed(data, outputs, *WORDS, *words)
            tell(Path(config.paths.run))
            return trained(config).steps

        return run

    ended = {}
    tasks = {0: task("seed=0", f"+callbacks.killed._target_={__name__}.Killed"), 1: task("seed=1")}
    run_all(tasks, Workers(1, 1), lambda _: None, lambda number, *end: ended.update({number: end}))
    assert ended[1][1] is None
    cause = ended[0][1]
    assert "was ended by SIGKILL, most likely because memory ran out (a training step needs less than" in cause
    assert "sweep.workers=1" in cause
    [error] = outputs.rglob(records.ERROR)
    assert json.loads(error.read_text())["message"] == cause


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None], ids=str)
def test_an_interrupt_ends_all_with_one_sentence(number, caplog, tmp_path):
    """The interrupt reaches the sweep or one of its runs."""

    def sleep(_):
        try:
            (tmp_path / f"began-{os.getpid()}").touch()
            time.sleep(60)
        finally:
            (tmp_path / f"ended-{os.getpid()}").touch()

    def interrupt(_):
        while not list(tmp_path.glob("began-*")):
            time.sleep(0.001)
        if number is None:
            raise SystemExit(workers.INTERRUPTED)
        os.kill(os.getppid(), number)
        time.sleep(60)

    begun, of_other_tests = [], {*multiprocessing.active_children()}
    with pytest.raises(SystemExit) as end, workers.interruptible():
        run_all({0: sleep, 1: interrupt, 2: sleep}, Workers(2, 1), begun.append, lambda *_: None)
    assert (end.value.code, begun) == (workers.INTERRUPTED, [0, 1])
    assert {*multiprocessing.active_children()} <= of_other_tests
    assert len(list(tmp_path.glob("ended-*"))) == 1
    assert caplog.messages == ["Interrupted; the same command continues with the runs that have not finished."]


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with workers.signals_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_runs_end_with_the_sweep_however_that_ends(tmp_path):
    def run(_):
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    sweep = multiprocessing.get_context("fork").Process(
        target=lambda: run_all({0: run, 1: run}, Workers(2, 1), lambda _: None, lambda *_: None)
    )
    sweep.start()
    deadline = time.monotonic() + 30
    while len(runs := list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    sweep.kill()
    sweep.join()
    while any(map(living, runs)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(runs) == 2
    assert not any(map(living, runs))


def living(process: Path) -> bool:
    try:
        return Path(f"/proc/{process.name}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("asked", "trainer", "runs", "gpus", "expected"),
    [
        ("auto", {}, 40, "", Workers(8, 1)),
        ("auto", {}, 3, "", Workers(3, 2)),
        ("auto", {}, 1, "", Workers(1, 8)),
        (2, {}, 40, "", Workers(2, 4)),
        (16, {}, 40, "", Workers(16, 1)),
        ("auto", {"devices": 2}, 40, "", Workers(1, 8)),
        ("auto", {}, 40, "01", Workers(2, 4, ("0", "1"))),
        (2, {}, 40, "01", Workers(4, 2, ("0", "1", "0", "1"))),
        (2, {}, 3, "01", Workers(3, 2, ("0", "1", "0"))),
        (2, {"accelerator": "cpu"}, 40, "01", Workers(2, 4)),
    ],
)
def test_cores_and_gpus_are_divided_among_workers(monkeypatch, asked, trainer, runs, gpus, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("subquad.utils.cores.usable_cores", lambda: 8)
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr(workers, "_gpus", lambda: list(gpus))
    assert workers_for(asked, ONE | trainer, runs) == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert usable_threads() == workers_for(asked, ONE | trainer, runs).threads == 1


def test_runs_side_by_side_share_the_free_memory():
    ended, free = {}, free_memory()
    tasks = dict.fromkeys(range(2), lambda _: free_memory())
    run_all(tasks, Workers(2, 1), lambda _: None, lambda number, *end: ended.update({number: end[0]}))
    assert all(0.4 * free < left < 0.6 * free for left in ended.values())


def test_runs_side_by_side_share_their_gpu():
    ended = {}
    tasks = dict.fromkeys(range(3), lambda _: share_of_gpu(80))
    run_all(tasks, Workers(3, 1, ("0", "1", "0")), lambda _: None, lambda number, *end: ended.update({number: end[0]}))
    assert ended == {0: 40, 1: 80, 2: 40}
    assert share_of_gpu(80) == 80


@pytest.mark.parametrize("asked", [0, "all", 1.5, True])
def test_a_number_of_workers_that_is_none_is_refused(asked):
    with pytest.raises(UserError, match="it takes auto, or a whole number of at least 1"):
        workers_for(asked, ONE, 3)


@pytest.mark.slow
def test_where_forking_is_not_safe_runs_train_one_after_another(data, outputs):
    code = """
import sys
import subquad.utils.torchvision_shim, pytorch_lightning  # which look at the platform
from subquad.cli.command import run
sys.platform = "darwin"
run("train")
"""
    words = ["-m", *WORDS, "attention=dba,softmax", "hydra/launcher=workers"]
    folders = [f"paths.data={data}", f"paths.outputs={outputs}"]
    command = [sys.executable, "-c", code, *words, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len([*outputs.rglob(records.RESULT)]) == 2
    broken = subprocess.run([*command, "backbone.heads=3"], capture_output=True, text=True, check=False)
    assert broken.returncode == 1
    assert "2 of 2 runs failed (#0, #1)" in broken.stdout + broken.stderr
