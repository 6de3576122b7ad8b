"""Submits training runs to Slurm as job arrays, each run once, and waits for them."""

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from subquad import records
from subquad.sweep.slurm.job import SlurmJob
from subquad.sweep.slurm.queue import Queue, Ticket, failure_reason, has_gpus, queue, ticket
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

_LARGEST_ARRAY = 1000  # Slurm's MaxArraySize is 1001 unless a cluster says otherwise
_MISSES = 3  # queries of the queue without a job before it counts as gone: files of other machines appear late
_PASSED = ("partition", "account", "qos", "setup", "signal_delay_s", "array_parallelism", "additional_parameters")


@dataclass(frozen=True, slots=True)
class Size:
    """Resources of a run: machines, processes on each machine, and GPUs on each machine."""

    nodes: int
    processes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """A run that a sweep requests: its folder, command line and resources, and the evaluations that it must write."""

    run: Path
    argv: tuple[str, ...]
    size: Size
    evaluations: tuple[Mapping[str, Any], ...] = ()


def size_of(trainer: Any, settings: Mapping[str, Any]) -> Size:
    """Resources of a run: `devices` processes on each of `num_nodes` machines; raises UserError if they are "auto".

    `gpus_per_node: auto` means a GPU for each process if the cluster has any and the trainer is not for CPUs.
    """
    processes = trainer.devices if trainer.get("strategy") else 1
    if not isinstance(processes, int):
        raise UserError(
            f"trainer.devices is {processes}; on a cluster set the number of processes of a machine, as in "
            "trainer.devices=4."
        )
    gpus = settings["gpus_per_node"]
    if gpus == "auto":
        gpus = processes if trainer.accelerator != "cpu" and has_gpus(settings["partition"]) else 0
    return Size(int(trainer.num_nodes), processes, int(gpus or 0))


def submit(requested: Iterable[RequestedRun], settings: Mapping[str, Any]) -> dict[Path, Ticket]:
    """Submits the runs that are neither complete nor queued; returns the job of each run that is not complete.

    Raises UserError if Slurm refuses them. A lock keeps two commands from submitting at the same time.
    """
    folder = Path(settings["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        current, tickets, new = queue(), {}, {}
        for request in requested:
            if records.complete(request.run, request.evaluations):
                continue
            job = ticket(request.run)
            if job is not None and current.has(job.job):
                tickets[request.run] = job
            else:
                new[request.run] = request
        if tickets:
            log.info("%d runs are in the queue already.", len(tickets))
        for size in dict.fromkeys(request.size for request in new.values()):
            same_size = [request for request in new.values() if request.size == size]
            for start in range(0, len(same_size), _LARGEST_ARRAY):
                tickets |= _submit(same_size[start : start + _LARGEST_ARRAY], size, settings)
    return tickets


def _submit(requests: Sequence[RequestedRun], size: Size, settings: Mapping[str, Any]) -> dict[Path, Ticket]:
    import submitit

    seconds = settings["timeout_min"] * 60
    if not 0 < settings["signal_delay_s"] < seconds:
        raise UserError(
            f"hydra.launcher.signal_delay_s is {settings['signal_delay_s']}; it must lie between 0 and the {seconds} "
            "seconds of hydra.launcher.timeout_min."
        )
    executor = submitit.SlurmExecutor(settings["folder"], max_num_timeout=settings["max_num_timeout"])
    submitted = time.time()
    try:
        executor.update_parameters(
            job_name=settings["name"], time=settings["timeout_min"], mem=f"{settings['mem_gb']}G",
            nodes=size.nodes, ntasks_per_node=size.processes, gpus_per_node=size.gpus or None,
            cpus_per_task=settings["cpus_per_task"], srun_args=["--kill-on-bad-exit=1"],
            **{name: settings[name] for name in _PASSED},
        )  # fmt: skip
        # Where this command runs inside a job, the variables of that job must not reach the new ones, except for the
        # path of Slurm's configuration.
        kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
        with submitit.helpers.clean_env(), submitit.core.utils.environment_variables(**kept):
            jobs = executor.submit_array([SlurmJob(request.argv, request.run, seconds) for request in requests])
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"Slurm refuses the jobs ({reason}); see the keys of hydra.launcher.") from None
    tickets = {}
    for request, job in zip(requests, jobs, strict=True):
        tickets[request.run] = Ticket(job.job_id, str(job.paths.stderr), submitted)
        tickets[request.run].keep(request.run)
    log.info("Submitted %d runs as job %s; logs in %s", len(jobs), jobs[0].job_id.partition("_")[0], executor.folder)
    return tickets


def wait(requested: Iterable[RequestedRun], tickets: Mapping[Path, Ticket], poll: float) -> dict[Path, str]:
    """Waits until no job of these runs is in the queue; returns the reason of each run that has failed.

    A job that is requeued (after preemption or a time limit, or by hand) is waited for.

    Args:
        poll: seconds between two queries of the queue.
    """
    evaluations = {request.run: request.evaluations for request in requested}
    open_jobs, missed = dict(tickets), dict.fromkeys(tickets, 0)
    reasons: dict[Path, str] = {}
    logged = None
    while open_jobs:
        current = _queue_or_none()
        if current is not None:
            for run, job in dict(open_jobs).items():
                finished = records.complete(run, evaluations[run])
                alive = current.has(job.job) or (current.ends(job.job) and not finished)
                missed[run] = 0 if alive else missed[run] + 1
                if missed[run] >= (1 if finished else _MISSES):
                    del open_jobs[run]
                    if not finished:
                        reasons[run] = failure_reason(run, job, current.states.get(job.job))
            if logged != (logged := _summary(tickets, open_jobs, reasons, current)):
                log.info(logged)
        if open_jobs:
            time.sleep(poll)
    return reasons


def _queue_or_none() -> Queue | None:
    """The queue, or None while Slurm's controller does not answer; the jobs continue even while it restarts."""
    try:
        return queue()
    except UserError as error:
        log.warning("%s Waiting.", error)
        return None


def _summary(
    tickets: Mapping[Path, Ticket], open_jobs: Mapping[Path, Ticket], reasons: Mapping[Path, str], current: Queue
) -> str:
    running = sum(current.runs(job.job) for job in open_jobs.values())
    finished = len(tickets) - len(open_jobs) - len(reasons)
    queued = sum(current.has(job.job) for job in open_jobs.values()) - running
    return f"{len(tickets)} runs: {finished} finished, {running} running, {queued} queued, {len(reasons)} failed."
