"""Jobs of Slurm and its launcher, with scripts in place of Slurm's commands; see also test_slurm_cluster.py."""

import getpass
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from hydra.core.utils import JobStatus
from hydra.errors import CompactHydraException
from omegaconf import OmegaConf
from runs import TINY, composed, crash, prepared, run_script, trained
from slurm_requests import ONE, wanted

from hydra_plugins.subquad.slurm_launcher import Slurm
from subquad import records
from subquad.sweep.requested import RequestedRun
from subquad.sweep.slurm import job as slurm_job
from subquad.sweep.slurm import queue as slurm_queue
from subquad.sweep.slurm import submit as slurm
from subquad.sweep.slurm.job import SlurmJob
from subquad.sweep.slurm.submit import Jobs
from subquad.training import distributed
from subquad.training.trainer import build_trainer
from subquad.utils.errors import UserError

MOTIONS = ("task=uea/basic_motions", "attention=softmax", "scale=smoke", *TINY, "~callbacks.cores")
SRUN = {"NTASKS": "1", "NTASKS_PER_NODE": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "JOB_NAME": "subquad"}


@pytest.fixture
def job_process(monkeypatch):
    """Restores what a job changes in its process."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with mock.patch.object(os, "register_at_fork"), mock.patch.dict(os.environ):
        yield


def test_a_job_is_its_command_line(tmp_path, job_process):
    script = tmp_path / "program.py"
    script.write_text("import sys, pathlib, helper\npathlib.Path(sys.argv[1]).write_text(__name__ + helper.WORD)")
    (tmp_path / "helper.py").write_text("WORD = ' beside it'")
    SlurmJob([RequestedRun(tmp_path, (str(script),), (str(tmp_path / "out"),), ONE)], 1, 60)()
    assert (tmp_path / "out").read_text() == "__main__ beside it"


def test_caches_of_compilers_are_on_the_disk_of_the_node(tmp_path, job_process):
    """The folders that the user has set reach a job that does not inherit the environment."""
    script = tmp_path / "program.py"
    script.write_text("import sys, os, pathlib, json\npathlib.Path(sys.argv[1]).write_text(json.dumps({**os.environ}))")
    os.environ |= {"SUBQUAD_DATA": "/data", "SUBQUAD_CONFIGS": "/configs", "TRITON_CACHE_DIR": "/mine"}
    job = SlurmJob([RequestedRun(tmp_path, (str(script),), (str(tmp_path / "out"),), ONE)], 1, 60)
    for name in ("SUBQUAD_DATA", "SUBQUAD_CONFIGS", "TORCHINDUCTOR_CACHE_DIR", "SUBQUAD_KERNEL_CACHE"):
        os.environ.pop(name, None)
    job()
    seen = json.loads((tmp_path / "out").read_text())
    assert (seen["SUBQUAD_DATA"], seen["TRITON_CACHE_DIR"]) == ("/data", "/mine")
    assert seen["SUBQUAD_CONFIGS"] == "/configs"
    for name in ("TORCHINDUCTOR_CACHE_DIR", "SUBQUAD_KERNEL_CACHE"):
        assert Path(seen[name]).is_relative_to(Path(tempfile.gettempdir()) / f"subquad-{getpass.getuser()}")


def test_the_job_that_follows_does_what_is_left(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setattr(distributed, "_preempted", False)
    job = SlurmJob(wanted(tmp_path, *"abcd"), 2, seconds=600)
    job.started = time.time() - 500
    with pytest.raises(UserError, match="No epoch ended"):
        job.checkpoint()
    records.write_json(tmp_path / "a" / records.RESULT, {})
    records.write_error("failed", "", tmp_path / "c")
    records.write_error("failed before", "", tmp_path / "d")
    os.utime(tmp_path / "d" / records.ERROR, (100, 100))
    rest = job.checkpoint().function
    assert [run.run.name for run in rest.runs] == ["b", "d"]
    command = rest.argv(tmp_path / "jobs")
    assert command == [
        "train.py", "-m", "hydra/sweeper=job_list", f"hydra.sweeper.jobs={tmp_path / 'jobs'}", "sweep.workers=2",
    ]  # fmt: skip
    assert [json.loads(line) for line in (tmp_path / "jobs").read_text().splitlines()] == [["b"], ["d"]]


def test_a_job_is_queued_again_only_where_another_one_gets_further(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setattr(distributed, "_preempted", False)
    job = SlurmJob(wanted(tmp_path, "."), 1, seconds=600)
    job.started = time.time() - 500
    with pytest.raises(UserError, match=r"No epoch ended within the 10 minutes of a job.*hydra.launcher.timeout_min"):
        job.checkpoint()
    assert not distributed.preempted()  # an error of the run, not a preemption
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    last.touch()
    again = job.checkpoint().function
    assert (again.runs, again.submitted, again.seconds) == (job.runs, job.submitted, 600)
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
    assert distributed.lock_timeout() == 1
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
    whole = OmegaConf.create({"hydra": {"overrides": {"hydra": ["+hydra.launcher.extra=1", "hydra.verbose=true"]}}})
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "--config-dir", "mine", "seed=0,1"])
    with mock.patch("hydra.core.hydra_config.HydraConfig.set_config"):
        found.setup(hydra_context=mock.Mock(config_loader=loader), task_function=mock.Mock(), config=whole)
        yield found, Path(config.paths.run)


def test_a_sweep_hears_of_each_run(launcher, data, outputs, commands):
    found, run = launcher
    trained(composed(data, outputs, *MOTIONS, "seed=0"))
    with mock.patch.object(slurm, "SlurmJob", wraps=SlurmJob) as made:
        finished, failed = found.launch([["seed=0"], ["seed=1"]], 0)
    [call] = made.call_args_list
    assert SlurmJob(*call.args).argv(run / "unused") == [
        str(Path("train.py").absolute()), "--config-dir", "mine", "hydra.verbose=true", "seed=1",
    ]  # fmt: skip
    assert finished.status == JobStatus.COMPLETED
    assert finished.return_value == records.read(run).metrics["val/accuracy"]
    assert failed.status == JobStatus.FAILED
    assert failed.overrides == ["seed=1"]
    with pytest.raises(Exception, match=r"Slurm's job 7 is gone and left no record.*error.json"):
        _ = failed.return_value


def test_one_folder_for_all_runs_is_refused(launcher):
    found, _ = launcher
    with pytest.raises(CompactHydraException, match=r"paths.run=/one is one folder for all runs; leave it out"):
        found.launch([["seed=0", "paths.run=/one"], ["seed=1", "paths.run=/one"]], 0)


def test_an_interrupt_leaves_the_jobs_in_the_queue(launcher, caplog):
    found, _ = launcher
    with mock.patch.object(Jobs, "wait", side_effect=KeyboardInterrupt), pytest.raises(SystemExit) as end:
        found.launch([["seed=0"], ["seed=1"]], 0)
    assert end.value.code == 130
    assert "the same command waits for them again; to cancel them: scancel 7" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "hidden", "sentence"),
    [
        (["-m"], "submitit", "submitit is not installed; pip install 'subquad[slurm]'."),
        (["-m"], "sbatch", "hydra/launcher=slurm finds no sbatch here; start it where Slurm's commands work"),
        ([], "", "hydra/launcher= works in sweeps only, which may have a single run; add -m."),
    ],
)
def test_what_is_missing_is_named(data, outputs, tmp_path, monkeypatch, overrides, hidden, sentence):
    outputs.mkdir()
    if hidden == "submitit":
        (tmp_path / "submitit.py").write_text("raise ModuleNotFoundError(name='submitit')")
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
