"""Checks of whole runs on a device: a killed run that resumes, and a run divided among several devices."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from subquad import records
from subquad.config.overrides import as_override
from subquad.measure.device_checks import CheckedValue
from subquad.utils.errors import UserError

ROUNDING = 1e-3
"""Largest relative difference of weights between two runs whose sums differ in their order."""
_RUN = (
    "task=lra/listops", "attention=dba", "scale=smoke", "limits.steps=60", "recipe.steps_per_epoch=10",
    "recipe.batch_size=8", "scheduler.warmup=20", "backbone.dropout=0.0", "~callbacks.cores",
)  # fmt: skip
"""Six epochs of a small model on generated data, without dropout, which each process draws for itself."""
_SECONDS = 300


def resumed(device: str, folder: Path) -> list[CheckedValue]:
    """A run that is killed after an epoch and started again ends with the weights of an undisturbed run.

    They must be equal on a CPU. On a GPU, whose sums have no fixed order by default, they may differ by rounding.
    """
    trainer = ["trainer=cpu" if device == "cpu" else "trainer=gpu"]
    with ThreadPoolExecutor() as side_by_side:  # most of their time they start
        undisturbed = side_by_side.submit(_finish, folder / "undisturbed", trainer)
        _kill_after_an_epoch(folder / "killed", trainer)
        said = _finish(folder / "killed", trainer)
        undisturbed.result()
    if "Resuming from the last checkpoint" not in said:
        raise UserError("The killed run did not resume from its checkpoint; see its output in the file.")
    limit = 0.0 if device == "cpu" else ROUNDING
    return [_difference("weights of a killed and resumed run", folder / "undisturbed", folder / "killed", limit)]


def divided(device: str, folder: Path) -> list[CheckedValue]:
    """A run on all GPUs, or in two processes on a CPU, ends with the weights of a run in one process, to rounding."""
    alone, together = ("trainer=cpu", "trainer=ddp_cpu") if device == "cpu" else ("trainer=gpu", "trainer=ddp")
    count = 2 if device == "cpu" else torch.cuda.device_count()
    # Adam with a small epsilon would turn gradients that are zero but for rounding into full steps.
    shared = [f"recipe.batch_size={8 * count}", "limits.steps=6", "recipe.steps_per_epoch=3", "optimizer.eps=0.001"]
    _finish(folder / "alone", [alone, *shared])
    _finish(folder / "together", [together, f"trainer.devices={count}", *shared])
    return [_difference(f"weights of {count} processes and of one", folder / "alone", folder / "together", ROUNDING)]


def _command(folder: Path, overrides: Sequence[str]) -> list[str]:
    paths = [f"paths.outputs={as_override(folder)}", f"paths.data={as_override(folder.parent / 'data')}"]
    return [sys.executable, "-m", "subquad.cli.train", *_RUN, *overrides, *paths]


def _finish(folder: Path, overrides: Sequence[str]) -> str:
    """Runs a training command to its end and returns what it printed; raises UserError if it fails."""
    try:
        done = subprocess.run(
            _command(folder, overrides), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"A training run did not end within {_SECONDS} seconds.") from None
    if done.returncode:
        raise UserError(f"A training run failed: {' '.join(done.stdout.strip().splitlines()[-3:])[-600:]}")
    return done.stdout


def _kill_after_an_epoch(folder: Path, overrides: Sequence[str]) -> None:
    deadline = time.monotonic() + _SECONDS
    with subprocess.Popen(
        _command(folder, overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            while process.poll() is None and time.monotonic() < deadline and not any(folder.rglob("last.ckpt")):
                time.sleep(0.001)
            ended = process.poll() is not None
        finally:
            if process.poll() is None:
                os.kill(process.pid, 9)
    if ended or any(folder.rglob(records.RESULT)):
        raise UserError("The run ended before it could be killed; run the command again.")


def _difference(what: str, first: Path, second: Path, limit: float) -> CheckedValue:
    """The norm of the difference of the last weights, relative to their norm."""
    one, other = (_weights(folder) for folder in (first, second))
    squares = sum(((one[name] - other[name]).double().square().sum().item()) for name in one)
    return CheckedValue(what, (squares / sum(w.double().square().sum().item() for w in one.values())) ** 0.5, limit)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    [checkpoint] = folder.rglob("last.ckpt")
    content = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    return {name: weight for name, weight in content.items() if weight.is_floating_point()}
