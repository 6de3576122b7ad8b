"""Slurm's commands as scripts, and the settings of its launcher."""

import os

import pytest
from omegaconf import OmegaConf
from runs import ROOT


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
    return folder
