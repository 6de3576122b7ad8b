"""Distributed training of one run by several processes. Importing this module does not import torch."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in Lightning's order
_SET_BY_LIGHTNING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")


_preempted = False


def preempted() -> bool:
    """Whether the cluster has preempted this job; later errors are then a consequence of that."""
    return _preempted


def mark_preempted(*_: Any) -> None:
    """Marks this job as preempted. Takes the arguments of a signal handler and ignores them."""
    global _preempted
    _preempted = True


def rank() -> int:
    """Rank of this process among those that torchrun, srun or Lightning started for one run; 0 for a single process."""
    return next((int(os.environ[name]) for name in _RANK_VARIABLES if name in os.environ), 0)


def has_peers() -> bool:
    """Whether srun or torchrun started other processes for the same run."""
    return any(int(os.environ.get(name, 1)) > 1 for name in ("WORLD_SIZE", "SLURM_NTASKS"))


@contextmanager
def managed_processes(trainer: Any) -> Iterator[None]:
    """Manages the other processes that Lightning starts for this run inside the block.

    They are started with the command of this job; inside a sweep, the command of this process would start the whole
    sweep again. If this process fails, they are killed, because on GPUs they would wait for it forever. After a success
    the variables that Lightning set are removed, so that the next job of a sweep does not try to join them.
    """
    launcher = trainer.strategy.launcher
    before = sys.argv
    sys.argv = _command()
    try:
        yield
    except BaseException:
        others = [*getattr(launcher, "procs", ())]
        if others:
            launcher.procs.clear()  # where Lightning's observer finds a killed one, it kills this process as well
        for process in others:
            process.send_signal(signal.SIGKILL)
        raise
    finally:
        sys.argv = before
    if trainer.world_size > 1:
        from torch import distributed

        distributed.destroy_process_group()
    if getattr(launcher, "procs", ()):
        for process in launcher.procs:
            process.wait()
        for name in _SET_BY_LIGHTNING:
            os.environ.pop(name, None)


def _command() -> list[str]:
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        return sys.argv
    return [sys.argv[0], *flags(), *HydraConfig.get().overrides.task]


def flags() -> list[str]:
    """The command-line arguments that are not overrides, such as --config-name and its value; without -m."""
    return [
        arg for arg in sys.argv[1:]
        if (arg.startswith("-") or ("=" not in arg and arg[0] != "~")) and arg not in ("-m", "--multirun")
    ]  # fmt: skip


def lock_timeout() -> float:
    """Seconds that a run waits for its lock: 1, or 180 in a Slurm job, whose predecessor may have been killed.

    Whoever asks whether a run is being trained holds its lock for an instant. A network file system may release the
    lock of a machine that has failed only after minutes.
    """
    return 180.0 if "SUBMITIT_EXECUTOR" in os.environ or "SLURM_RESTART_COUNT" in os.environ else 1.0
