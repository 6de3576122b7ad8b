"""Several processes that train one run together. Light: no torch before a run trains."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

_PLACES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in Lightning's order
_LEFT_BEHIND = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")


_preempted = False


def preempted() -> bool:
    """Whether the cluster has asked this job to make room; whatever fails from now on fails because of that."""
    return _preempted


def mark_preempted(*_: Any) -> None:
    """Remembers that the job must make room; takes the arguments of a signal handler."""
    global _preempted
    _preempted = True


def rank() -> int:
    """Place of this process among those that torchrun, srun or Lightning started for one run; 0 where it is alone."""
    return next((int(os.environ[name]) for name in _PLACES if name in os.environ), 0)


def several() -> bool:
    """Whether srun or torchrun started other processes with this one, which wait for it to train with them."""
    return any(int(os.environ.get(name, 1)) > 1 for name in ("WORLD_SIZE", "SLURM_NTASKS"))


@contextmanager
def together(trainer: Any) -> Iterator[None]:
    """Inside the block Lightning may start the other processes of this run; after it none of them is left.

    They get the command of this job, also where it is one of a sweep, whose own command would start the sweep again.
    Where this process fails, they are ended: on GPUs they would wait for it for ever. After a success nothing is left
    that would make the next job of a sweep join processes that are gone.
    """
    launcher = trainer.strategy.launcher
    before = sys.argv
    sys.argv = _command()
    try:
        yield
    except BaseException:
        for process in getattr(launcher, "procs", ()):
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
        for name in _LEFT_BEHIND:
            os.environ.pop(name, None)


def _command() -> list[str]:
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        return sys.argv
    return [sys.argv[0], *flags(), *HydraConfig.get().overrides.task]


def flags() -> list[str]:
    """The words of this command that are no settings, such as --config-dir and its folder; without -m."""
    return [word for word in sys.argv[1:] if "=" not in word and word[0] != "~" and word not in ("-m", "--multirun")]


def patience() -> float:
    """Seconds that a run waits for its lock: none, but in a job of a cluster, where the one before may have died.

    A lock of a process ends with it; on a network file system, with its machine only minutes later.
    """
    return 180.0 if "SUBMITIT_EXECUTOR" in os.environ or "SLURM_RESTART_COUNT" in os.environ else 0.0
