"""Slurm's commands as scripts, the settings of its launcher, and a cluster on this machine."""

import os
import sys
from contextlib import contextmanager

import pytest
from omegaconf import OmegaConf
from runs import ROOT

from subquad.sweep.slurm.queue import has_gpus


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
        f"#!/bin/sh\nn=$(ls {folder} | grep -c submitted)\ncp $1 {folder}/submitted.$n\nenv > {folder}/environment\n"
        "echo Submitted batch job $((7 + n))\n"
    )
    for path in folder.glob("*"):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    has_gpus.cache_clear()
    yield folder
    has_gpus.cache_clear()


@pytest.fixture(scope="module")
def one_node():
    """The module of scripts/ that starts clusters."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import one_node_slurm
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    pytest.importorskip("submitit")
    if lacking := one_node_slurm.missing():
        pytest.skip(f"Slurm is not installed here: no {', '.join(lacking)}")
    return one_node_slurm


@pytest.fixture(scope="module")
def cluster(one_node):
    """A context with a cluster, whose value is the environment in which Slurm's commands reach it."""

    @contextmanager
    def started(**settings):
        try:
            with one_node.cluster(**settings) as environment:
                yield environment
        except RuntimeError as error:
            pytest.skip(f"this user cannot start a cluster here: {error}")

    return started
