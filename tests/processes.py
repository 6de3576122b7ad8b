"""Runs of two processes, and how to compare them with runs of one.

As a program: one of the two, which trains several runs one after another, as importing torch takes longer than all of
them. `LOCAL_RANK=<0 or 1> python tests/processes.py <file of JSON>`; the file holds for each run its overrides, the
number of steps after which both processes raise (or null), and the port to meet at.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from runs import TINY, compose_run, crash, trained, weights
from torch import distributed
from torch.testing import assert_close

from subquad import records
from subquad.utils.errors import UserError

PLAIN = (*TINY, "backbone.dropout=0.0", "backbone.layers=2", "~callbacks.cores")
UEA = ("task=uea/basic_motions", "scale=smoke", "limits.cases=33", "limits.epochs=4", "recipe.batch_size=8")
STEPS = ("scale=smoke", "recipe.batch_size=12", "limits.steps=6", "recipe.steps_per_epoch=2")
CASES = {
    "fitted": (
        *UEA, "attention=ecoformer", "attention.bits=4", "attention.anchors=5", "attention.refit_epochs=2",
        "backbone.norm=layer", *PLAIN,
    ),
    "batch norm": (*UEA, "limits.cases=30", "attention=softmax", *PLAIN),
    "redrawn": (
        "task=lra/listops", *STEPS, "optimizer.lr=0.01", "scheduler.warmup=3", "attention=performer",
        "attention.redraw=2", *PLAIN,
    ),
    "masked text": (
        "task=mlm/text", "data=synthetic", *STEPS, "attention=softmax", "data.masked=0.05",
        "backbone.attention_dropout=0.0", *PLAIN,
    ),
    "sum of losses": (
        "task=vqa_v2", "data=synthetic", "scale=smoke", "attention=dba", "recipe.batch_size=10", "optimizer.eps=0.001",
        *PLAIN,
    ),
}  # fmt: skip
"""Without dropout, whose masks every process draws for itself. Of 33 rows the last batch of a pass has one."""

DDP, SHARDED = ("trainer=ddp_cpu",), ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")


def command_lines() -> list[str]:
    """Of all processes of this machine; one that ends meanwhile is left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


def told(data: Path, outputs: Path, case: str, *trainer: str) -> tuple[str, ...]:
    """The overrides of a case, by another trainer than one process on a CPU where there are any of it."""
    kept = (word for word in CASES[case] if not trainer or word != "trainer=cpu")
    return (*kept, *trainer, f"paths.data={data}", f"paths.outputs={outputs}")


def run_of(outputs: Path) -> Path:
    """The only finished run below a folder."""
    [found] = outputs.rglob("result.json")
    return found.parent


def assert_same(run: Path, expected: Path) -> None:
    """Two runs have the same name, history, metrics and weights, to rounding."""
    ours, theirs = (records.read(folder) for folder in (run, expected))
    assert (ours.fingerprint, ours.steps, ours.parameters) == (theirs.fingerprint, theirs.steps, theirs.parameters)
    assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)
    history, whole = (records.read_history(folder / "metrics.csv") for folder in (run, expected))
    assert history.keys() == whole.keys()
    for step, row in whole.items():
        assert history[step] == pytest.approx(row, rel=1e-4)
    for name in ("best.ckpt", "last.ckpt"):
        found, wanted = weights(run, name), weights(expected, name)
        assert found.keys() == wanted.keys()
        for key, tensor in wanted.items():
            assert_close(found[key], tensor, rtol=1e-3, atol=1e-5, msg=f"{name}: {key}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def train_together(place: Path, runs: Sequence[tuple[Sequence[str], int | None]]) -> list[str]:
    """Trains runs, each by two processes; `place` is a new folder. Returns what the two said."""
    place.mkdir(parents=True)
    listed = place / "runs.json"
    listed.write_text(json.dumps([[overrides, after, _free_port()] for overrides, after in runs]))
    return two_processes(place, __file__, str(listed))


class KilledError(AssertionError):
    """A process was ended by a signal."""


def two_processes(place: Path, *command: str) -> list[str]:
    """Runs a Python program twice at once, as LOCAL_RANK 0 and 1, to the end. Returns what the two printed."""
    started = []
    for rank in range(2):
        places = {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        with (place / f"{rank}.txt").open("w") as said:
            line = [sys.executable, *command]
            started.append(subprocess.Popen(line, env=os.environ | places, stdout=said, stderr=said))
    try:
        for process in started:
            process.wait(timeout=600)  # seconds alone, minutes beside other programs
    finally:
        for process in started:
            process.kill()
            process.wait()
    said_by = [(place / f"{rank}.txt").read_text() for rank in range(2)]
    codes = [process.returncode for process in started]
    if codes != [0, 0]:
        error = KilledError if min(codes) < 0 else AssertionError
        raise error("\n".join([f"They ended with {codes}.", *said_by]))
    return said_by


def main(listed: Path) -> None:
    for overrides, after, port in json.loads(listed.read_text(encoding="utf-8")):
        os.environ["MASTER_PORT"] = str(port)
        try:
            with nullcontext() if after is None else crash(after):
                trained(compose_run(overrides))
        except SystemExit as end:  # how the second process ends a run
            if end.code and after is None:
                raise
        except (RuntimeError, UserError):  # its own crash, or what it hears of the other's
            if after is None:
                raise
        if distributed.is_initialized():
            distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
