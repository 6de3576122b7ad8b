"""Training runs through Slurm: submitted as arrays, each once, and waited for."""

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
from subquad.sweep.slurm.queue import Queue, Ticket, has_gpus, queue, ticket, why
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

_LARGEST_ARRAY = 1000  # Slurm's MaxArraySize is 1001 unless a cluster says otherwise
_CERTAIN = 3  # looks at the queue before a job counts as gone: files of other machines appear late
_PASSED = ("partition", "account", "qos", "setup", "signal_delay_s", "array_parallelism", "additional_parameters")


@dataclass(frozen=True, slots=True)
class Size:
    """What a run needs: machines, processes on each, and whether a process has a GPU."""

    nodes: int
    processes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that a sweep asks for: its folder, its command line, what it needs and which evaluations it is to leave."""

    run: Path
    argv: tuple[str, ...]
    size: Size
    evaluations: tuple[Mapping[str, Any], ...] = ()


def size_of(trainer: Any, settings: Mapping[str, Any]) -> Size:
    """What a run needs by its trainer: `devices` processes on each of `num_nodes` machines. Raises UserError at auto.

    `gpus_per_node: auto` is a GPU for each process, where the cluster has any and the trainer is not for CPUs.
    """
    processes = trainer.devices if trainer.get("strategy") else 1
    if not isinstance(processes, int):
        raise UserError(
            f"trainer.devices is {processes}; on a cluster say how many processes a machine has, as trainer.devices=4."
        )
    gpus = settings["gpus_per_node"]
    if gpus == "auto":
        gpus = processes if trainer.accelerator != "cpu" and has_gpus(settings["partition"]) else 0
    return Size(int(trainer.num_nodes), processes, int(gpus or 0))


def submit(wanted: Iterable[Wanted], settings: Mapping[str, Any]) -> dict[Path, Ticket]:
    """Gives Slurm those runs that are neither complete nor in the queue; the job of each run that is not complete.

    Raises UserError where Slurm refuses them. Two commands that submit at once wait for one another.
    """
    folder = Path(settings["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        now, tickets, new = queue(), {}, {}
        for each in wanted:
            if records.complete(each.run, each.evaluations):
                continue
            job = ticket(each.run)
            if job is not None and now.has(job.job):
                tickets[each.run] = job
            else:
                new[each.run] = each
        if tickets:
            log.info("%d runs are in the queue already.", len(tickets))
        for size in dict.fromkeys(each.size for each in new.values()):
            alike = [each for each in new.values() if each.size == size]
            for start in range(0, len(alike), _LARGEST_ARRAY):
                tickets |= _submit(alike[start : start + _LARGEST_ARRAY], size, settings)
    return tickets


def _submit(alike: Sequence[Wanted], size: Size, settings: Mapping[str, Any]) -> dict[Path, Ticket]:
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
        # What a job around this command says of itself must not reach the new ones; where Slurm is, must.
        found = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
        with submitit.helpers.clean_env(), submitit.core.utils.environment_variables(**found):
            jobs = executor.submit_array([SlurmJob(each.argv, each.run, seconds) for each in alike])
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"Slurm refuses the jobs ({reason}); see the keys of hydra.launcher.") from None
    tickets = {}
    for each, job in zip(alike, jobs, strict=True):
        tickets[each.run] = Ticket(job.job_id, str(job.paths.stderr), submitted)
        tickets[each.run].keep(each.run)
    log.info("Submitted %d runs as job %s; logs in %s", len(jobs), jobs[0].job_id.partition("_")[0], executor.folder)
    return tickets


def wait(wanted: Iterable[Wanted], tickets: Mapping[Path, Ticket], poll: float) -> dict[Path, str]:
    """Waits until no job of these runs is in the queue; why each run that is not complete is not.

    A job that is queued again (preempted, out of time, by hand) is waited for.
    """
    evaluations = {each.run: each.evaluations for each in wanted}
    open_jobs, missed = dict(tickets), dict.fromkeys(tickets, 0)
    reasons: dict[Path, str] = {}
    told = None
    while open_jobs:
        now = _queue_or_none()
        if now is not None:
            for run, job in dict(open_jobs).items():
                finished = records.complete(run, evaluations[run])
                alive = now.has(job.job) or (now.ends(job.job) and not finished)
                missed[run] = 0 if alive else missed[run] + 1
                if missed[run] >= (1 if finished else _CERTAIN):
                    del open_jobs[run]
                    if not finished:
                        reasons[run] = why(run, job, now.states.get(job.job))
            if told != (told := _summary(tickets, open_jobs, reasons, now)):
                log.info(told)
        if open_jobs:
            time.sleep(poll)
    return reasons


def _queue_or_none() -> Queue | None:
    """None while Slurm's controller gives no answer: it may be restarted, and the jobs run on."""
    try:
        return queue()
    except UserError as error:
        log.warning("%s Waiting.", error)
        return None


def _summary(
    tickets: Mapping[Path, Ticket], open_jobs: Mapping[Path, Ticket], reasons: Mapping[Path, str], now: Queue
) -> str:
    running = sum(now.runs(job.job) for job in open_jobs.values())
    finished = len(tickets) - len(open_jobs) - len(reasons)
    queued = sum(now.has(job.job) for job in open_jobs.values()) - running
    return f"{len(tickets)} runs: {finished} finished, {running} running, {queued} queued, {len(reasons)} failed."
