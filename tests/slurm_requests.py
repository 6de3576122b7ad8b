"""Runs that tests request of Slurm."""

from pathlib import Path

from subquad.sweep.requested import RequestedRun, Size

ONE = Size(nodes=1, processes=1, gpus=0, cores=4)


def wanted(place: Path, *names: str, size: Size = ONE) -> list[RequestedRun]:
    return [RequestedRun(place / name, ("train.py",), (name,), size) for name in names]
