"""Runs on a real Slurm cluster of one machine: killed, requeued, preempted, on two processes, waited for twice."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from processes import CASES, DDP, assert_same, command_lines
from runs import composed, identical, record_of, trained, weights
from slurm_cluster import SLURM, WORDS, job_of, processes_of, run_of, said, started, wait_for
from sweeps import REPRODUCE, page, reproduce, settings

from subquad import records

pytestmark = [pytest.mark.slow, pytest.mark.slurm]


@pytest.fixture(scope="module")
def slurm(cluster):
    """The environment of a cluster of one node."""
    with cluster(cpus=4, kill_wait=2) as environment:
        yield environment


def test_runs_that_are_killed_or_preempted_end_as_those_that_are_left_alone(data, outputs, tmp_path, slurm):
    alone = tmp_path / "alone" / "outputs"
    with started(data, alone, {}, "-m", *WORDS, "seed=0,1,2") as local:
        killed, preempted = _killed_and_preempted(data, outputs, slurm)
        local.communicate(timeout=240)
    assert local.returncode == 0
    logs = outputs / "sweeps" / "slurm"
    assert len(list(logs.glob("*_submission.sh"))) <= 2  # the second command submits what has failed, and nothing else
    for job in (killed, preempted):
        assert "Restarts=1 " in said(slurm, "scontrol", "show", "job", job)
        assert "Resuming from the last checkpoint" in (logs / f"{job}_0_log.err").read_text()
    assert (logs / f"{preempted}_0_log.out").read_text().count("Requeued job") == 1
    for seed in range(3):
        run, expected = run_of(outputs, seed), run_of(alone, seed)
        assert not (run / records.ERROR).exists()
        assert (run / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()
        assert records.read(run).metrics == records.read(expected).metrics
        assert all(identical(weights(run, name), weights(expected, name)) for name in ("best.ckpt", "last.ckpt"))


def _killed_and_preempted(data, outputs, slurm) -> tuple[str, str]:
    """Runs a sweep of three valid runs and an invalid one: interrupts it, starts it again, kills and preempts jobs.

    Returns the killed and the preempted job.
    """
    command = (*SLURM, *WORDS, "seed=0,1,2,-1")
    with started(data, outputs, slurm, *command) as first:
        wait_for(lambda: len(list(outputs.rglob("slurm.json"))) == 4, "the submission of four runs")
        first.send_signal(signal.SIGINT)
        _, text = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "The jobs stay in the queue" in text
    said_by_second = outputs / "second.txt"
    with said_by_second.open("w") as file, started(data, outputs, slurm, *command, stderr=file) as second:
        wait_for(lambda: "in the queue already" in said_by_second.read_text(), "the second look at the queue")
        killed = job_of(outputs, 0)
        os.kill(processes_of(killed)[0], signal.SIGKILL)
        preempted = job_of(outputs, 1)
        said(slurm, "scancel", "-s", "USR2", preempted)
        wait_for(
            lambda: "FAILED" in said(slurm, "squeue", "-hrt", "all", "-j", killed, "-o", "%T"), "the end of the job"
        )
        said(slurm, "scontrol", "requeue", killed)
        second.communicate(timeout=240)
    text = said_by_second.read_text()
    assert re.search(r"[34] runs are in the queue already", text), text  # seed -1 may have failed
    assert second.returncode == 1, text  # seed -1
    assert "seed is -1; choose a whole number" in text, text
    assert json.loads((run_of(outputs, -1) / records.ERROR).read_text())["message"].startswith("seed is -1")
    return killed, preempted


@pytest.mark.release
def test_the_page_of_a_killed_sweep_is_that_of_one_left_alone(tmp_path, slurm):
    """The test kills the command, and the process of a job before its training ends."""
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    overrides = ("seeds=[0]", *SLURM[1:])
    with (
        subprocess.Popen([*REPRODUCE, *overrides], stdout=subprocess.DEVNULL, **settings(killed, slurm)) as first,
        subprocess.Popen([*REPRODUCE, "seeds=[0]"], stdout=subprocess.DEVNULL, **settings(alone)) as undisturbed,
    ):
        wait_for(lambda: len(list(killed.rglob("slurm.json"))) == 4, "the submission of four runs")
        job = json.loads(min(killed.rglob("slurm.json")).read_text())["job"]
        wait_for(lambda: processes_of(job), "the start of a job")
        os.kill(processes_of(job)[0], signal.SIGKILL)
        first.kill()
        undisturbed.wait(timeout=240)
    assert undisturbed.returncode == 0
    reproduce(killed, *overrides, environment=slurm)
    assert not list(killed.rglob(records.ERROR))
    assert page(killed) == page(alone)


def test_two_processes_of_a_job_train_to_the_numbers_of_one(data, outputs, tmp_path, slurm):
    overrides = tuple(word for word in CASES["batch norm"] if word != "trainer=cpu")
    with started(data, outputs, slurm, *SLURM, *overrides, *DDP, "trainer.devices=2") as waiting:
        _, text = waiting.communicate(timeout=240)
    assert waiting.returncode == 0, text
    config = composed(data, tmp_path / "alone", *CASES["batch norm"])
    trained(config)
    assert_same(record_of(outputs), Path(config.paths.run))
    [script] = (outputs / "sweeps" / "slurm").glob("*_submission.sh")
    assert "--ntasks-per-node=2" in script.read_text()


def test_a_cluster_leaves_nothing_behind_when_what_runs_in_it_fails(one_node):
    try:
        with one_node.cluster() as environment:
            folder = Path(environment["SLURM_CONF"]).parent
            said(environment, "sbatch", "-o", "/dev/null", "--wrap", "sleep 600")
            raise KeyboardInterrupt
    except RuntimeError as error:
        pytest.skip(f"this user cannot start a cluster here: {error}")
    except KeyboardInterrupt:
        pass
    assert not folder.exists()
    assert not [line for line in command_lines() if str(folder) in line]
