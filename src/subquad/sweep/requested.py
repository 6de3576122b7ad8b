"""Runs that a sweep requests from other machines, with their resources. Importing this module does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad import records


@dataclass(frozen=True, slots=True)
class Size:
    """Resources of a run: machines, processes and GPUs on each machine, cores of each process (None: the cluster's)."""

    nodes: int
    processes: int
    gpus: int
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """A run that a sweep requests.

    run: its folder. command: program and arguments that all runs of the sweep share. overrides: its own.
    evaluations: the changes of its data on which it must be evaluated.
    """

    run: Path
    command: tuple[str, ...]
    overrides: tuple[str, ...]
    size: Size
    evaluations: tuple[Mapping[str, Any], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether its record and evaluations are there."""
        return records.complete(self.run, self.evaluations)
