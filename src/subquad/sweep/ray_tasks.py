"""The runs of a sweep as tasks of Ray. A task is the command line of one run, in a process of its own."""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from omegaconf import DictConfig

from subquad.sweep.requested import RequestedRun, Size
from subquad.sweep.workers import end_with_parent
from subquad.utils.errors import UserError, first_line
from subquad.utils.free_memory import shared_gpu
from subquad.utils.killed import why_killed

log = logging.getLogger(__name__)


def size_of(config: DictConfig, settings: Mapping[str, Any]) -> Size:
    """Cores of a run, and whether it wants a GPU. Raises UserError for a run of several processes."""
    if config.trainer.devices != 1 or config.trainer.num_nodes != 1:
        raise UserError("hydra/launcher=ray trains runs of one process; leave trainer.devices and num_nodes at 1.")
    return Size(1, 1, int(config.trainer.accelerator in ("auto", "gpu", "cuda")), settings["num_cpus"])


def train_all(runs: Sequence[RequestedRun], settings: Mapping[str, Any], first: int) -> dict[Path, str]:
    """Trains runs as Ray has room for them.

    Args:
        runs: those that have not finished.
        settings: configs/hydra/launcher/ray.yaml.
        first: the number of the first, for messages.

    Returns:
        The causes of failures by the folder of the run.
    """
    if not runs:
        return {}
    check_settings(settings)
    own = not ray.is_initialized()
    try:
        if own:
            _reach(settings["address"])
            ray.init(address=settings["address"], include_dashboard=False, logging_level=logging.ERROR)
    except (OSError, ValueError) as error:
        raise UserError(
            f"Ray does not answer at {settings['address']} ({first_line(error)}); start it with `ray start --head`, or "
            "leave hydra.launcher.address out."
        ) from None
    try:
        check_room(settings, ray.nodes())
        return _wait({_submitted(run, settings, number): (number, run) for number, run in enumerate(runs, first)})
    finally:
        if own:
            ray.shutdown()


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises UserError where a number of configs/hydra/launcher/ray.yaml is none that Ray takes."""
    gpus, memory = settings["num_gpus"], settings["memory_gb"]
    for name, value, kinds, least, meant in (
        ("num_cpus", settings["num_cpus"], int, 1, "a whole number from 1"),
        ("num_gpus", 0 if gpus == "auto" else gpus, int | float, 0, "auto, or a number from 0"),
        ("memory_gb", 1 if memory is None else memory, int | float, 0, "null, or a number from 0"),
        ("max_retries", settings["max_retries"], int, -1, "a whole number from 0, or -1 for any number"),
    ):
        if isinstance(value, bool) or not isinstance(value, kinds) or value < least:
            raise UserError(f"hydra.launcher.{name}={value} is not possible; give {meant}.")


def check_room(settings: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raises UserError where no machine is large enough for a run, which would wait for ever.

    Warns only if the cluster is not this command's own, because it may still grow. nodes: as `ray.nodes()` lists them.
    """
    asked = {"CPU": settings["num_cpus"], "GPU": 0 if settings["num_gpus"] == "auto" else settings["num_gpus"]}
    have = [node["Resources"] for node in nodes if node["Alive"]]
    asked["memory"] = int((settings["memory_gb"] or 0) * 2**30)
    if any(all(of.get(kind, 0) >= count for kind, count in asked.items()) for of in have):
        return
    most = [max((of.get(kind, 0) for of in have), default=0) for kind in asked]
    cause = (
        f"No machine of Ray has the num_cpus={asked['CPU']}, num_gpus={asked['GPU']} and memory_gb="
        f"{settings['memory_gb'] or 'null'} of a run at once (the most there is: {most[0]:g}, {most[1]:g} and "
        f"{most[2] / 2**30:.3g})"
    )
    if settings["address"] is None:
        raise UserError(f"{cause}; lower hydra.launcher.num_cpus, num_gpus or memory_gb.")
    log.warning(f"{cause}; the runs wait until the cluster has one.")


def _reach(address: str | None) -> None:
    """Raises OSError or ValueError where nothing listens at `host:port`, for which Ray would wait minutes."""
    parts = urlsplit(address if address and "://" in address else f"//{address or ''}")
    if parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), timeout=10).close()


def _submitted(run: RequestedRun, settings: Mapping[str, Any], number: int) -> Any:
    gpus = settings["num_gpus"]
    if gpus == "auto":
        gpus = run.size.gpus if ray.cluster_resources().get("GPU") else 0
    memory = {} if settings["memory_gb"] is None else {"memory": int(settings["memory_gb"] * 2**30)}
    task = ray.remote(_train).options(
        num_cpus=settings["num_cpus"], num_gpus=gpus, max_retries=settings["max_retries"],
        retry_exceptions=[Killed], **memory,
    )  # fmt: skip
    names = [name for name in os.environ if name.startswith(("SUBQUAD_", "HF_", "WANDB_", "OMP_"))]
    environment = {"OMP_NUM_THREADS": str(settings["num_cpus"])} | {name: os.environ[name] for name in names}
    if 0 < gpus < 1:
        environment |= shared_gpu(int(1 / gpus))
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *filter(os.path.isdir, sys.path)]))
    command = [sys.executable, *run.command, *run.overrides]
    return task.remote(command, str(Path.cwd()), {**environment, "PYTHONPATH": paths}, number, run.run)


class Killed(RuntimeError):
    """A run was killed by a signal; it can be started again and resumes."""


def _train(command: list[str], here: str, environment: dict[str, str], number: int, run: Path) -> None:
    """Trains one run, whose output goes to that of the sweep, each line with its number.

    Raises Killed or RuntimeError if it fails.
    """
    process = subprocess.Popen(
        command, cwd=here, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, encoding="utf-8", errors="replace", preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )  # fmt: skip
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        sys.stdout.write(f"#{number} | {line}")
        sys.stdout.flush()
        last = line.strip() or last
    if (status := process.wait()) < 0:
        raise Killed(f"{signal.Signals(-status).name}, {why_killed(run)}")
    if status:
        raise RuntimeError(last)


def _wait(tasks: dict[Any, tuple[int, RequestedRun]]) -> dict[Path, str]:
    failed: dict[Path, str] = {}
    while tasks:
        [done], _ = ray.wait(list(tasks), num_returns=1)
        number, run = tasks.pop(done)
        try:
            ray.get(done)
        except ray.exceptions.RayTaskError as error:
            failed[run.run] = first_line(error.cause)
        except ray.exceptions.RayError as error:
            failed[run.run] = first_line(error)
        if run.run not in failed and not run.complete:
            failed[run.run] = "it ended without a record"
        if run.run in failed:
            log.error(f"#{number} ({' '.join(run.overrides)}) failed: {failed[run.run]}")
    return failed
