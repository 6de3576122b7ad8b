"""How tests reach the command line: composed and trained in this process, or as a program of its own."""

import io
import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from subquad import records
from subquad.config.compose import compose_run
from subquad.data.split_data import SplitData
from subquad.records import Record
from subquad.results.cells import RunSpec

ROOT = Path(__file__).parents[1]
TINY = ("backbone.layers=1", "backbone.dim=16", "backbone.heads=2", "backbone.ffn=16", "trainer=cpu")
"""A model that trains in milliseconds a step, on either backbone."""


FACTS: dict[str, Any] = {
    "fingerprint": "0" * 12, "seed": 0, "task": "lra/listops", "attention": "dba", "recipe": "luna",
    "protocol": "paper", "scale": "smoke", "metrics": {"test/accuracy": 0.1 + 0.2},
    "baselines": {"majority class": 0.17}, "parameters": 3, "steps": 4, "wall_seconds": 1.5, "peak_memory_mib": 2.0,
    "peak_memory_of": "resident set", "data_fingerprint": "ab", "tags": ["x"],
    "machine": {"cpu": "A CPU", "cores": 2, "threads": 2, "gpu": None, "system": "Linux"}, "versions": {"torch": "2"},
    "commit": "unknown", "finished": "2026-01-01T00:00:00+00:00",
    "config": {
        "seed": 0, "task": {"monitor": "val/accuracy", "module": {}}, "data": {"root": "/d"},
        "trainer": {"devices": 1, "num_nodes": 1, "precision": "32-true"},
    },
}  # fmt: skip
"""A record."""

LITTLE = {
    "eval": ["run={run}"],
    "pack": ["{run}"],
    "predict": ["run={run}", "data=data/synthetic/classification/BasicMotions/BasicMotions_TEST.ts"],
    "plan": ["table=primal_dual/9", "rows=[BasicMotions]", "scale=smoke"],
    "results": ["check"],
    "prepare": ["task=uea/basic_motions"],
    "compare": [
        "task=uea/basic_motions",
        "data=synthetic",
        "scale=smoke",
        "attentions=[softmax,dba]",
        "rates=[1e-3]",
        "seeds=2",
    ],
    "count": ["task=uea/basic_motions", "attention=dba"],
    "new": ["attention", "mine"],
    "check_attention": ["attention=softmax", "lengths=[]", "contract=false"],
    "check_gpu": ["device=cpu", "quick=true", "attention=[softmax]", "parts=[parity]"],
    "check_theorems": [],
    "show_attention": ["length=16", "dim=16", "heads=2"],
    "figure": ["figure=linformer/2", "lengths=[64]", "tokens=64", "rounds=1"],
    "bench": ["attention=[dba]", "lengths=[64]", "rounds=1", "dims=[32]"],
    "bench_data": ["task=[uea/basic_motions]", "scale=smoke", "workers=0", "seconds=0.1"],
    "bench_long": ["attention=[dba]", "lengths=[64]", "rounds=1", "dims=[32]"],
    "bench_overhead": ["task=uea/basic_motions", "data=synthetic", "scale=smoke", "limits.cases=8"],
    "bench_peers": ["attention=[dba]", "lengths=[64]", "rounds=1"],
    "bench_refresh": ["attention=[ecoformer]", "length=64", "rounds=1"],
    "bench_vision": ["attention=[dba]", "size=32", "batch=1", "rounds=1", "modes=[training]"],
    "dashboard": ["table=dba/2"],
}
"""Every command but train, reproduce and report, with little to do; {run} is the folder of a run."""


def data_root(base: Path) -> Path:
    """The folder of data sets that a whole test session shares."""
    folder = base / "subquad-data"
    folder.mkdir(exist_ok=True)
    return folder


def composed(data: Path, outputs: Path, *overrides: str) -> DictConfig:
    """The configuration of a command, with its folders."""
    return compose_run([*overrides, f"paths.data={data}", f"paths.outputs={outputs}"])


def prepared(config: DictConfig) -> SplitData:
    """The data module of a configuration, ready to be asked for batches."""
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    return data


def trained(config: DictConfig) -> Record:
    """Trains in this process, on one thread."""
    from subquad.training.run import train

    with one_thread():
        return train(config)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside the block, a run leaves the number of threads as it is."""
    with mock.patch.object(torch, "set_num_threads"):
        yield


@contextmanager
def crash(step: int) -> Iterator[None]:
    """Inside the block, the training step number `step` (from 0) of a process raises."""
    from subquad.tasks.supervised import Supervised

    intact, taken = Supervised.training_step, 0

    def fragile(self: Any, batch: Any) -> torch.Tensor:
        nonlocal taken
        taken += 1
        if taken > step:
            raise RuntimeError("pulled the plug")
        return intact(self, batch)

    with mock.patch.object(Supervised, "training_step", fragile):
        yield


def program(data: Path, outputs: Path, script: str, *overrides: str) -> tuple[list[str], dict[str, Any]]:
    """What to give to subprocess to run a run_script of the project; no threads compete in tests."""
    places = {"SUBQUAD_DATA": str(data), "SUBQUAD_OUTPUTS": str(outputs)}
    known = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    return [sys.executable, str(ROOT / script), *overrides], {
        "env": {**known, **places},
        "cwd": outputs.parent,
        "text": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }


def run_script(data: Path, outputs: Path, script: str, *overrides: str) -> "subprocess.CompletedProcess[str]":
    """Runs a program to its end."""
    command, settings = program(data, outputs, script, *overrides)
    return subprocess.run(command, timeout=300, check=False, **settings)


def answer(*overrides: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script to its end in this process, which saves the imports: for what is said, not for what is measured."""
    out, err, status = io.StringIO(), io.StringIO(), None
    with (
        mock.patch.object(sys, "argv", [str(ROOT / overrides[0]), *overrides[1:]]),
        mock.patch.dict(os.environ),
        redirect_stdout(out),
        redirect_stderr(err),
        one_thread(),
    ):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            status = end.code
        finally:
            _close_logs()
    if isinstance(status, str):  # as the interpreter would
        err.write(f"{status}\n")
        status = 1
    return subprocess.CompletedProcess([*overrides], status or 0, out.getvalue(), err.getvalue())


def _close_logs() -> None:
    """Closes the log files of a run, as the end of its process would."""
    for handler in [x for x in logging.root.handlers if isinstance(x, logging.FileHandler)]:
        logging.root.removeHandler(handler)
        handler.close()


def weights(run: Path, name: str = "best.ckpt") -> dict[str, torch.Tensor]:
    """The state dict of a checkpoint of a run."""
    return torch.load(run / "checkpoints" / name, weights_only=True)["state_dict"]


def identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def record_of(outputs: Path) -> Path:
    """The only run directory below an outputs folder that has a record."""
    [found] = (outputs / "runs").rglob("result.json")
    return found.parent


def has_record(outputs: Path) -> bool:
    """Whether any run below an outputs folder finished."""
    return any(outputs.rglob("result.json"))


def sentences(text: str) -> Sequence[str]:
    """The lines of a program's message."""
    return [line for line in text.splitlines() if line.strip()]


def finish(job: RunSpec, accuracy: float, evaluated: Iterable[tuple[dict[str, Any], float]] = ()) -> None:
    """Writes what a finished run leaves: a record with a test accuracy, and evaluations on changed data."""
    fingerprint, _, seed = job.folder.name.partition("-s")
    known = {"fingerprint": fingerprint, "seed": int(seed), "metrics": {"test/accuracy": accuracy}}
    records.write_json(job.folder / records.RESULT, FACTS | known)
    for changes, value in evaluated:
        records.write_evaluation(job.folder, changes, {"test/accuracy": value}, {})
