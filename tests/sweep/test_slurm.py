"""Runs as Slurm jobs, with scripts in place of Slurm's commands; test_slurm_cluster.py uses a real cluster."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from unittest import mock

import pytest
from hydra.core.utils import JobStatus
from omegaconf import OmegaConf
from runs import ROOT, TINY, composed, crash, prepared, run_script, trained

from hydra_plugins.subquad.slurm_launcher import Slurm
from subquad import records
from subquad.sweep.slurm import job as slurm_job
from subquad.sweep.slurm import queue as slurm_queue
from subquad.sweep.slurm import submit as slurm
from subquad.sweep.slurm.job import SlurmJob
from subquad.sweep.slurm.queue import Queue, Ticket, failure_reason, queue, ticket
from subquad.sweep.slurm.submit import RequestedRun, Size, size_of, submit, wait
from subquad.training import distributed
from subquad.training.trainer import build_trainer
from subquad.utils.errors import UserError

MOTIONS = ("task=uea/basic_motions", "attention=softmax", "scale=smoke", *TINY, "~callbacks.cores")
TRAINER = {"accelerator": "cpu", "devices": 1, "num_nodes": 1}
SRUN = {"NTASKS": "1", "NTASKS_PER_NODE": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "JOB_NAME": "subquad"}
ONE = Size(nodes=1, processes=1, gpus=0)


@pytest.fixture
def settings(tmp_path):
    own = OmegaConf.load(ROOT / "configs/hydra/launcher/slurm.yaml")
    own.folder = str(tmp_path / "logs")
    found = OmegaConf.to_container(own)
    del found["_target_"]
    return found


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Slurm's commands as scripts: each prints the file of its name, and sbatch also stores its input."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "sinfo", "srun", "scontrol"):
        (folder / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.says\n")
        (folder / f"{name}.says").touch()
    (folder / "sbatch").write_text(
        f"#!/bin/sh\ncp $1 {folder}/submitted.$(ls {folder} | grep -c submitted)\nenv > {folder}/environment\n"
        "echo Submitted batch job 7\n"
    )
    for path in folder.glob("*"):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def wanted(place: Path, *names: str, size: Size = ONE) -> list[RequestedRun]:
    return [RequestedRun(place / name, ("train.py", name), size) for name in names]


def submitted(commands: Path) -> list[str]:
    return [path.read_text() for path in sorted(commands.glob("submitted.*"))]


def test_runs_of_one_size_are_one_array(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    two = Size(nodes=2, processes=4, gpus=4)
    tickets = submit([*wanted(tmp_path, "a", "b", "c"), *wanted(tmp_path, "d", size=two)], settings)
    assert [tickets[tmp_path / name].job for name in "abcd"] == ["7_0", "7_1", "7_2", "7"]
    assert tickets[tmp_path / "b"].log == str(tmp_path / "logs" / "7_1_0_log.err")
    assert ticket(tmp_path / "b") == tickets[tmp_path / "b"]
    array, single = submitted(commands)
    asked = {line.removeprefix("#SBATCH --") for line in array.splitlines() if line.startswith("#SBATCH")}
    assert asked >= {
        "array=0-2%3", "time=240", "signal=USR2@120", "mem=16G", "cpus-per-task=4", "nodes=1", "ntasks-per-node=1",
        "requeue", "job-name=subquad",
    }  # fmt: skip
    assert not any(line.startswith(("partition", "account", "gpus")) for line in asked)
    assert "--kill-on-bad-exit=1" in array
    asked = {line.removeprefix("#SBATCH --") for line in single.splitlines()}
    assert asked >= {"nodes=2", "ntasks-per-node=4", "gpus-per-node=4"}


def test_an_array_is_no_larger_than_slurm_takes(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    with mock.patch.object(slurm, "_LARGEST_ARRAY", 2):
        submit(wanted(tmp_path, *"abcde"), settings | {"array_parallelism": 1})
    assert [text.count("--array=0-1%1") for text in submitted(commands)] == [1, 1, 0]


def test_what_is_finished_or_in_the_queue_is_not_submitted(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    for name, job in {"waits": "3_1", "failed": "3_2", "gone": "3_3"}.items():
        Ticket(job, "log", 0.0).keep(tmp_path / name)
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / records.RESULT).write_text("{}")
    (commands / "squeue.says").write_text("3_1|PENDING\n3_2|FAILED\n9|RUNNING\n")
    tickets = submit(wanted(tmp_path, "waits", "failed", "gone", "done", "new", "new"), settings)
    assert {run.name: job.job for run, job in tickets.items()} == {
        "waits": "3_1", "failed": "7_0", "gone": "7_1", "new": "7_2",
    }  # fmt: skip
    assert len(submitted(commands)) == 1


def test_a_job_around_the_command_says_nothing_of_itself_to_new_jobs(tmp_path, commands, settings, monkeypatch):
    pytest.importorskip("submitit")
    for name, value in {"SLURM_NTASKS": "8", "RANK": "3", "SLURM_CONF": "/here"}.items():
        monkeypatch.setenv(name, value)
    submit(wanted(tmp_path, "a"), settings)
    seen = (commands / "environment").read_text().splitlines()
    assert "SLURM_CONF=/here" in seen
    assert not any(line.startswith(("SLURM_NTASKS=", "RANK=")) for line in seen)
    assert os.environ["SLURM_NTASKS"] == "8"
    assert os.environ["SLURM_CONF"] == "/here"


def test_a_refusal_of_slurm_is_one_sentence(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    (commands / "sbatch").write_text("#!/bin/sh\necho sbatch: error: invalid partition specified: gpu >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"invalid partition specified: gpu.*see the keys of hydra.launcher"):
        submit(wanted(tmp_path, "a"), settings)
    with pytest.raises(UserError, match="signal_delay_s is 14400; it must lie between 0 and the 14400 seconds"):
        submit(wanted(tmp_path, "a"), settings | {"signal_delay_s": 240 * 60})
    assert ticket(tmp_path / "a") is None


@pytest.mark.parametrize(
    ("trainer", "changes", "gres", "size"),
    [
        ({}, {}, "gpu:a100:4", Size(1, 1, 0)),
        ({"accelerator": "auto"}, {}, "(null)\ngpu:a100:4", Size(1, 1, 1)),
        ({"accelerator": "auto"}, {}, "(null)", Size(1, 1, 0)),
        ({"accelerator": "gpu", "devices": 4, "num_nodes": 2, "strategy": {}}, {}, "gpu:4", Size(2, 1, 1)),
        ({"accelerator": "gpu", "devices": 4, "num_nodes": 2, "strategy": {"a": 1}}, {}, "gpu:4", Size(2, 4, 4)),
        ({"devices": 2, "strategy": {"a": 1}}, {}, "gpu:4", Size(1, 2, 0)),
        ({"accelerator": "auto"}, {"gpus_per_node": 2}, "", Size(1, 1, 2)),
        ({"accelerator": "auto"}, {"gpus_per_node": None}, "gpu:4", Size(1, 1, 0)),
    ],
)
def test_a_run_asks_for_what_its_trainer_needs(commands, settings, trainer, changes, gres, size):
    (commands / "sinfo.says").write_text(gres)
    assert size_of(OmegaConf.create(TRAINER | trainer), settings | changes) == size


def test_processes_are_counted_before_anything_is_submitted(settings):
    trainer = OmegaConf.create(TRAINER | {"devices": "auto", "strategy": {"a": 1}})
    with pytest.raises(UserError, match=r"trainer.devices is auto; on a cluster set the number"):
        size_of(trainer, settings)


def looks(*states: dict[str, str] | None):
    """The states that successive queries of the queue return; None if squeue fails."""

    def answers():
        for state in chain(states, repeat(states[-1])):
            yield UserError("squeue failed (x)") if state is None else Queue(state)

    return mock.patch.object(slurm, "queue", side_effect=answers())


def test_a_job_that_is_queued_again_is_waited_for(tmp_path, caplog):
    caplog.set_level("INFO")
    run = tmp_path / "a"
    run.mkdir()
    ends = ["COMPLETING"] * 4  # its processes take their time to end
    there = [{"1": state} for state in ("RUNNING", "FAILED", *ends, "PENDING", "CONFIGURING")]
    with looks(*there[:2], None, *there[2:], {"1": "PREEMPTED"}, {}) as asked:
        reasons = wait(wanted(tmp_path, "a"), {run: Ticket("1", "no log", time.time())}, poll=0)
    assert asked.call_count == 12  # three queries without the job since it was last there
    assert reasons == {run: "Slurm's job 1 is gone and left no record; its log is no log"}
    assert json.loads((run / records.ERROR).read_text())["message"] == reasons[run]
    assert [r.message for r in caplog.records if "runs:" in r.message] == [
        "1 runs: 0 finished, 1 running, 0 queued, 0 failed.",
        "1 runs: 0 finished, 0 running, 0 queued, 0 failed.",
        "1 runs: 0 finished, 0 running, 1 queued, 0 failed.",
        "1 runs: 0 finished, 1 running, 0 queued, 0 failed.",
        "1 runs: 0 finished, 0 running, 0 queued, 0 failed.",
        "1 runs: 0 finished, 0 running, 0 queued, 1 failed.",
    ]


def test_a_job_with_a_record_has_finished_when_it_leaves_the_queue(tmp_path):
    (tmp_path / records.RESULT).write_text("{}")
    with looks({"1": "RUNNING"}, {"1": "RUNNING"}, {"1": "COMPLETING"}) as asked:
        assert wait(wanted(tmp_path, "."), {tmp_path: Ticket("1", "log", 0.0)}, poll=0) == {}
    assert asked.call_count == 3
    assert not (tmp_path / records.ERROR).exists()


def test_a_finished_run_that_lacks_an_evaluation_is_submitted_and_waited_for(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    [plain] = wanted(tmp_path, "a")
    asked = replace(plain, evaluations=({"multiply": 2},))
    records.write_json(plain.run / records.RESULT, {})
    assert submit([plain], settings) == {}
    tickets = submit([asked], settings)
    assert [*tickets] == [plain.run]
    with looks({"7": "RUNNING"}, {"7": "FAILED"}):
        reasons = wait([asked], tickets, poll=0)
    assert reasons[plain.run].startswith("Slurm's job 7 ended as FAILED and did not evaluate the run; its log is")
    records.write_evaluation(plain.run, {"multiply": 2}, {"test/accuracy": 1.0}, {})
    with looks({"7": "COMPLETED"}):
        assert wait([asked], tickets, poll=0) == {}
    assert submit([asked], settings) == {}


def test_the_error_of_a_run_is_why_its_job_failed(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    records.write_error("earlier", "trace", tmp_path)
    os.utime(tmp_path / records.ERROR, (100, 100))
    assert failure_reason(tmp_path, Ticket("1", str(log), 50.0), "FAILED") == "earlier"
    message = failure_reason(tmp_path, Ticket("2", str(log), 150.0), "OUT_OF_MEMORY")
    assert message == f"Slurm's job 2 ended as OUT_OF_MEMORY and left no record; its log is {log}"
    assert json.loads((tmp_path / records.ERROR).read_text())["traceback"] == "one\ntwo"


def test_squeue_is_asked_for_all_of_the_users_jobs(commands):
    (commands / "squeue").write_text('#!/bin/sh\necho "4_1|PENDING"; echo "4_2|COMPLETED"; echo "$@" >&2\n')
    found = queue()
    assert found.has("4_1")
    assert not found.has("4_2")
    (commands / "squeue").write_text("#!/bin/sh\necho slurm_load_jobs error >&2; exit 1\n")
    with pytest.raises(UserError, match="squeue failed \\(slurm_load_jobs error\\)"):
        queue()


def test_a_job_is_its_command_line(tmp_path, monkeypatch):
    script = tmp_path / "program.py"
    script.write_text("import sys, pathlib, helper\npathlib.Path(sys.argv[1]).write_text(__name__ + helper.WORD)")
    (tmp_path / "helper.py").write_text("WORD = ' beside it'")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with mock.patch.object(os, "register_at_fork"):
        SlurmJob([str(script), str(tmp_path / "out")], tmp_path, 60)()
    assert (tmp_path / "out").read_text() == "__main__ beside it"


def test_a_job_is_queued_again_only_where_another_one_gets_further(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setattr(distributed, "_preempted", False)
    job = SlurmJob(["train.py"], tmp_path, seconds=600)
    job.started = time.time() - 500
    with pytest.raises(UserError, match=r"No epoch ended within the 10 minutes of a job.*hydra.launcher.timeout_min"):
        job.checkpoint()
    assert not distributed.preempted()  # an error of the run, not a preemption
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    last.touch()
    again = job.checkpoint().function
    assert (again.argv, again.run, again.seconds) == (["train.py"], tmp_path, 600)
    assert distributed.preempted()
    os.utime(last, (job.started - 10, job.started - 10))  # written by the previous job
    with pytest.raises(UserError, match="No epoch ended"):
        job.checkpoint()
    job.started = time.time() - 100  # preempted early on
    assert job.checkpoint() is not None


def test_a_worker_leaves_signals_to_its_parent():
    before = {name: signal.getsignal(name) for name in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        slurm_job._ignore_signals()
        assert {signal.getsignal(name) for name in before} == {signal.SIG_IGN}
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def test_what_fails_while_the_job_makes_room_is_no_error_of_the_run(data, outputs, monkeypatch):
    monkeypatch.setattr(distributed, "_preempted", True)
    config = composed(data, outputs, *MOTIONS)
    with crash(0), pytest.raises(SystemExit) as end:
        trained(config)
    assert end.value.code == 130
    assert not (Path(config.paths.run) / records.ERROR).exists()


@pytest.mark.parametrize("inside", [True, False])
def test_a_job_works_until_it_is_killed(data, outputs, monkeypatch, inside):
    for name, value in SRUN.items() if inside else ():
        monkeypatch.setenv(f"SLURM_{name}", value)
    config = composed(data, outputs, *MOTIONS, "limits.epochs=2")
    from subquad.tasks.supervised import Supervised

    def terminated(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    with mock.patch.object(Supervised, "on_train_batch_end", terminated):
        if inside:
            assert trained(config).steps == 2
        else:
            with pytest.raises(SystemExit):
                trained(config)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_only_a_job_waits_for_the_lock_of_a_dead_one(monkeypatch):
    monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    assert distributed.lock_timeout() == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert distributed.lock_timeout() > 100
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    assert distributed.lock_timeout() > 100


@pytest.fixture
def launcher(data, outputs, settings, commands, monkeypatch):
    """The launcher as Hydra sets it up, and the folder of the run with seed 0."""
    pytest.importorskip("submitit")
    config = composed(data, outputs, *MOTIONS, "seed=0")
    found = Slurm(**settings | {"poll_seconds": 0})
    loader = mock.Mock()
    loader.load_sweep_config = lambda _, overrides: composed(data, outputs, *MOTIONS, *overrides)
    whole = OmegaConf.create({"hydra": {"overrides": {"hydra": ["hydra/launcher=slurm", "hydra.verbose=true"]}}})
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "--config-dir", "mine", "seed=0,1"])
    with mock.patch("hydra.core.hydra_config.HydraConfig.set_config"):
        found.setup(hydra_context=mock.Mock(config_loader=loader), task_function=mock.Mock(), config=whole)
        yield found, Path(config.paths.run)


def test_a_sweep_hears_of_each_run(launcher, data, outputs, commands):
    found, run = launcher
    trained(composed(data, outputs, *MOTIONS, "seed=0"))
    with mock.patch.object(slurm.submit.__globals__["SlurmJob"], "__init__", return_value=None) as made:
        finished, failed = found.launch([["seed=0"], ["seed=1"]], 0)
    [call] = made.call_args_list
    overrides = call.args[0]
    assert overrides == (str(Path("train.py").absolute()), "--config-dir", "mine", "hydra.verbose=true", "seed=1")
    assert finished.status == JobStatus.COMPLETED
    assert finished.return_value == records.read(run).metrics["val/accuracy"]
    assert failed.status == JobStatus.FAILED
    assert failed.overrides == ["seed=1"]
    with pytest.raises(Exception, match=r"Slurm's job 7 is gone and left no record.*error.json"):
        _ = failed.return_value


def test_an_interrupt_leaves_the_jobs_in_the_queue(launcher, caplog):
    found, _ = launcher
    with mock.patch.object(slurm, "wait", side_effect=KeyboardInterrupt), pytest.raises(SystemExit) as end:
        found.launch([["seed=0"], ["seed=1"]], 0)
    assert end.value.code == 130
    assert "the same command waits for them again; to cancel them: scancel 7" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "hidden", "sentence"),
    [
        (["-m"], "submitit", "hydra/launcher=slurm needs submitit; pip install subquad[slurm]"),
        (["-m"], "sbatch", "hydra/launcher=slurm finds no sbatch here; start it where Slurm's commands work"),
        ([], "", "hydra/launcher= works in sweeps only, which may have a single run; add -m."),
    ],
)
def test_what_is_missing_is_named(data, outputs, tmp_path, monkeypatch, overrides, hidden, sentence):
    outputs.mkdir()
    if hidden == "submitit":
        (tmp_path / "submitit.py").write_text("raise ImportError")
        path = os.pathsep.join((str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])))
        monkeypatch.setenv("PYTHONPATH", path)
    else:
        pytest.importorskip("submitit")
        monkeypatch.setenv("PATH", str(tmp_path))
    done = run_script(data, outputs, "train.py", *overrides, "hydra/launcher=slurm", *MOTIONS)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert slurm_queue.PROGRAMS[0] == "sbatch"


def test_a_job_of_slurm_is_queued_again_by_us_and_never_by_lightning(data, outputs, monkeypatch):
    for name, value in {"NTASKS": "2", "NTASKS_PER_NODE": "2", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_JOB_NAME", "subquad")
    config = composed(data, outputs, *MOTIONS, "trainer=ddp_cpu", "recipe.batch_size=4")
    trainer = build_trainer(config, prepared(config))
    environment = trainer.strategy.cluster_environment
    assert type(environment).__name__ == "SLURMEnvironment"
    assert not environment.auto_requeue
    assert trainer.world_size == 2
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")  # Lightning refuses this
    with pytest.raises(UserError, match="Use `--ntasks-per-node=2` instead"):
        build_trainer(config, prepared(config))


def test_an_interactive_job_of_slurm_trains_in_one_process(data, outputs, monkeypatch):
    for name, value in {"NTASKS": "2", "PROCID": "0", "JOB_NAME": "interactive"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    config = composed(data, outputs, *MOTIONS)
    assert build_trainer(config, prepared(config)).world_size == 1
