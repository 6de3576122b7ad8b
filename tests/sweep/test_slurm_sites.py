"""Runs on real Slurm clusters of this machine: several runs a job, small limits, bound cores, a lost node."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from processes import CASES, assert_same
from runs import composed, identical, record_of, trained, weights
from slurm_cluster import SLURM, WORDS, job_of, run_of, said, started

from subquad import records

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

SHORT = tuple(word.replace("epochs=80", "epochs=50") for word in WORDS)


@pytest.fixture(scope="module")
def two_nodes(cluster):
    """The environment of a cluster of two nodes of one core each."""
    with cluster(cpus=1, nodes=2, kill_wait=2) as environment:
        yield environment


def assert_as_alone(outputs: Path, alone: Path, seeds: range) -> None:
    for seed in seeds:
        run, expected = run_of(outputs, seed), run_of(alone, seed)
        assert not (run / records.ERROR).exists()
        assert records.read(run).metrics == records.read(expected).metrics
        assert (run / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()
        assert all(identical(weights(run, name), weights(expected, name)) for name in ("best.ckpt", "last.ckpt"))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_runs_that_share_a_job_end_as_those_that_are_left_alone(data, outputs, tmp_path, cluster):
    """The jobs bind their cores, take no array, inherit no environment, and start Python by a command around it."""
    alone = tmp_path / "alone" / "outputs"
    wrapper = tmp_path / "container"
    wrapper.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >> {tmp_path}/wrapped\nexec "$@"\n')
    wrapper.chmod(0o755)
    with cluster(kill_wait=2, settings=["MaxArraySize=1"]) as slurm:
        command = (
            *SLURM, "hydra.launcher.runs_per_job=3", "hydra.launcher.runs_per_gpu=2",
            f"hydra.launcher.python={wrapper} {sys.executable}",
            "+hydra.launcher.additional_parameters.export=NONE", *SHORT, "seed=0,1,-1,2,3",
        )  # fmt: skip
        with started(data, outputs, slurm, *command) as sweep:
            preempted = job_of(outputs, 0)
            said(slurm, "scancel", "-s", "USR2", preempted)
            with started(data, alone, {}, "-m", *SHORT, "sweep.workers=2", "seed=0,1,2,3") as local:
                local.communicate(timeout=240)
            _, text = sweep.communicate(timeout=240)
        assert "Restarts=1 " in said(slurm, "scontrol", "show", "job", preempted)
    assert (sweep.returncode, local.returncode) == (1, 0), text
    assert "seed is -1; choose a whole number" in text, text
    assert "5 runs: 4 finished, 0 running, 0 queued, 1 failed." in text
    logs = outputs / "sweeps" / "slurm"
    assert len(list(logs.glob("*_submission.sh"))) == 2
    assert "Resuming from the last checkpoint" in (logs / f"{preempted}_0_log.err").read_text()
    assert_as_alone(outputs, alone, range(4))
    assert len((tmp_path / "wrapped").read_text().split()) == 3
    machine = records.read(run_of(outputs, 3)).machine
    assert (machine["cores"], machine["threads"]) == (2, 1)


@pytest.mark.release
def test_two_nodes_train_one_run(data, outputs, tmp_path, two_nodes):
    """One process on each. The names of the nodes have no address, so the first process is told where to listen."""
    overrides = [word for word in CASES["batch norm"] if word != "trainer=cpu"]
    places = ("trainer=ddp_cpu", "trainer.devices=1", "trainer.num_nodes=2")
    address = 'hydra.launcher.setup=["export MASTER_ADDR=127.0.0.1"]'
    with started(data, outputs, two_nodes, *SLURM, address, *overrides, *places) as waiting:
        _, text = waiting.communicate(timeout=240)
    assert waiting.returncode == 0, text
    config = composed(data, tmp_path / "alone", *CASES["batch norm"])
    trained(config)
    assert_same(record_of(outputs), Path(config.paths.run))


@pytest.mark.release
def test_a_lost_node_leaves_its_run_to_another(data, outputs, tmp_path, two_nodes):
    alone = tmp_path / "alone" / "outputs"
    with started(data, outputs, two_nodes, *SLURM, *SHORT, "seed=0,1") as sweep:
        job = job_of(outputs, 0)
        [node] = said(two_nodes, "squeue", "-hj", job, "-o", "%N").split()
        lose(node, two_nodes)
        with started(data, alone, {}, "-m", *SHORT, "seed=0,1") as local:
            local.communicate(timeout=240)
        _, text = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, text
    assert "Restarts=1 " in said(two_nodes, "scontrol", "show", "job", job)
    assert "Resuming from the last checkpoint" in (outputs / f"sweeps/slurm/{job}_0_log.err").read_text()
    assert_as_alone(outputs, alone, range(2))


def lose(node: str, environment) -> None:
    """Kills the daemon of a node and all processes of its jobs, so that the controller hears nothing from the node."""
    steps = [f"slurmstepd: [{job}." for job in said(environment, "squeue", "-hw", node, "-o", "%A").split()]
    folder = Path(environment["SLURM_CONF"]).parent
    children: dict[int, list[int]] = {}
    roots = [int((folder / f"slurmd-{node}.pid").read_text())]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            title, settings = (path / "cmdline").read_text(), (path / "environ").read_text()
        except (OSError, UnicodeDecodeError):
            continue
        children.setdefault(parent, []).append(int(path.name))
        if title.startswith(tuple(steps)) and str(folder) in settings:
            roots.append(int(path.name))
    while roots:
        process = roots.pop(0)
        roots += children.get(process, [])
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
