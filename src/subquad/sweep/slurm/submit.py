"""Submits training runs to Slurm as job arrays, each run once, and waits for them."""

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from subquad import records
from subquad.sweep.requested import RequestedRun, Size
from subquad.sweep.slurm.job import SlurmJob
from subquad.sweep.slurm.queue import Queue, Ticket, failure_reason, has_gpus, is_full, largest_array, queue, ticket
from subquad.utils.display import counted
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count, Natural, NonNegative, SettingType, check

log = logging.getLogger(__name__)

_MISSES = 3  # queries of the queue without a job before it counts as gone: files of other machines appear late
_CORES = 4  # of a process that loads its data itself
_PASSED = ("partition", "account", "qos", "setup", "signal_delay_s", "array_parallelism", "additional_parameters")
_KINDS: dict[str, Any] = {
    "timeout_min": Count, "signal_delay_s": Count, "max_num_timeout": Natural, "mem_gb": Count | None,
    "gpus_per_node": Literal["auto"] | Natural | None, "cpus_per_task": Literal["auto"] | Count | None,
    "runs_per_gpu": Count, "runs_per_job": Count, "array_parallelism": Count, "setup": Sequence[str] | None,
    "poll_seconds": NonNegative,
}  # fmt: skip
_LEFT = re.compile(r"[0-9a-f]{32}\.pkl|submission_file_[0-9a-f]{32}\.sh")  # files of submitit for a refused array


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises UserError for a setting of another type than configs/hydra/launcher/slurm.yaml says."""
    for name, kind in _KINDS.items():
        check(f"hydra.launcher.{name}", settings[name], SettingType(kind))


def size_of(config: Any, settings: Mapping[str, Any]) -> Size:
    """Resources of a run: `devices` processes on each of `num_nodes` machines; raises UserError if they are "auto".

    `gpus_per_node: auto` means a GPU for each process if the cluster has any and the trainer is not for CPUs.
    `cpus_per_task: auto` means four cores for each process, or more if it has more than three data workers.
    """
    trainer, workers = config.trainer, config.data.get("num_workers", 0)
    processes = trainer.devices if trainer.get("strategy") else 1
    if not isinstance(processes, int):
        raise UserError(
            f"trainer.devices is {processes}; on a cluster set the number of processes of a machine, as in "
            "trainer.devices=4."
        )
    gpus = settings["gpus_per_node"]
    if gpus == "auto":
        gpus = processes if trainer.accelerator != "cpu" and has_gpus(settings["partition"]) else 0
    cores = settings["cpus_per_task"]
    if cores == "auto":
        cores = max(_CORES, 1 + workers) if isinstance(workers, int) else 2 * _CORES
    return Size(int(trainer.num_nodes), processes, int(gpus or 0), cores)


class Jobs:
    """The jobs of a sweep: submits its runs, in waves if the cluster does not take all at once, and waits for them.

    Raises UserError for wrong settings.

    Attributes:
        tickets: the job of each run that has one.
        unsent: the runs that have no job yet.
        failed: why runs failed, by their folders.
    """

    def __init__(self, requested: Iterable[RequestedRun], settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.requested = {request.run: request for request in requested}
        self.unsent = dict(self.requested)
        self.tickets: dict[Path, Ticket] = {}
        self.failed: dict[Path, str] = {}
        self._check()
        self._largest = largest_array()
        self._in_queue = 0  # number of the user's jobs
        self._full_at: int | None = None  # that number when Slurm took no more

    def _check(self) -> None:
        check_settings(self.settings)
        settings, seconds = self.settings, self.settings["timeout_min"] * 60
        if not 0 < settings["signal_delay_s"] < seconds:
            raise UserError(
                f"hydra.launcher.signal_delay_s is {settings['signal_delay_s']}; it must lie between 0 and the "
                f"{seconds} seconds of hydra.launcher.timeout_min."
            )

    def submit(self) -> None:
        """Submits the runs that are neither complete nor queued, as many as Slurm takes; the others stay in `unsent`.

        Slurm is asked by trying, because limits on the number of jobs are spread over associations, qualities of
        service and partitions. A lock keeps two commands from submitting at the same time. Raises UserError if squeue
        fails, or if Slurm refuses jobs for good before it has taken any.
        """
        folder = Path(self.settings["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            current = queue()
            self._in_queue = current.size
            self._leave_out(current)
            count = self._largest if self._full_at is None else max(1, self._full_at - current.size)
            for size in dict.fromkeys(request.size for request in self.unsent.values()):
                count = self._submit_all(size, count)

    def _leave_out(self, current: Queue) -> None:
        """Removes from `unsent` the runs that are complete or in the queue, by this or by another command."""
        queued = 0
        for run, request in [*self.unsent.items()]:
            job = ticket(run)
            if request.complete:
                del self.unsent[run]
            elif job is not None and current.has(job.job):
                self._sent([request], job)
                queued += 1
        if queued:
            log.info("%d runs are in the queue already.", queued)

    def _sent(self, requests: Iterable[RequestedRun], job: Ticket) -> None:
        for request in requests:
            self.tickets[request.run] = job
            del self.unsent[request.run]

    def _submit_all(self, size: Size, count: int) -> int:
        """Submits the runs of a size in arrays of at most `count` jobs, of half as many after each refusal.

        Returns the number of jobs of the next array; 0 if Slurm takes no more.
        """
        side_by_side = self.settings["runs_per_gpu"] * max(1, size.gpus)
        alike = [request for request in self.unsent.values() if request.size == size]
        commands = {request.command for request in alike}  # a job has one; a search, one for each trial
        one = size.nodes * size.processes == 1 and len(commands) == 1
        per_job = max(self.settings["runs_per_job"], side_by_side) if one else 1
        refused = False
        while count and (requests := [request for request in self.unsent.values() if request.size == size]):
            packs = [requests[i : i + per_job] for i in range(0, len(requests), per_job)][:count]
            try:
                self._submit_array(packs, size, min(side_by_side, len(packs[0])))
                count = count if refused else min(self._largest, 2 * count)
            except _Refused as refusal:
                refused, full = True, is_full(str(refusal))
                if full and len(packs) > 1:
                    count = len(packs) // 2
                elif full and self._in_queue:
                    if self._full_at is None:
                        log.info("%d runs wait until Slurm takes more jobs (%s).", len(self.unsent), refusal)
                    self._full_at, count = self._in_queue, 0
                else:
                    self._give_up(requests, f"Slurm refuses the jobs ({refusal}); see the keys of hydra.launcher.")
        return count

    def _give_up(self, requests: Iterable[RequestedRun], reason: str) -> None:
        if not self.tickets:
            raise UserError(reason)
        for request in requests:
            records.write_error(reason, "", request.run)
            self.failed[request.run] = reason
            del self.unsent[request.run]

    def _submit_array(self, packs: Sequence[Sequence[RequestedRun]], size: Size, side_by_side: int) -> None:
        """Submits a job for each pack of runs; raises _Refused if Slurm takes none of them."""
        import submitit

        settings, cores = self.settings, size.cores and size.cores * side_by_side
        memory = settings["mem_gb"] and settings["mem_gb"] * size.processes * side_by_side
        executor = submitit.SlurmExecutor(
            settings["folder"], max_num_timeout=settings["max_num_timeout"], python=settings["python"]
        )
        # srun takes neither the cores (since Slurm 22.05) nor, where sbatch hands on none, the environment by itself.
        srun = ["--kill-on-bad-exit=1", "--export=ALL", *([f"--cpus-per-task={cores}"] if cores else [])]
        jobs = [SlurmJob(pack, settings["runs_per_gpu"], settings["timeout_min"] * 60) for pack in packs]
        try:
            executor.update_parameters(
                job_name=settings["name"], time=settings["timeout_min"], mem=f"{memory}G" if memory else None,
                nodes=size.nodes, ntasks_per_node=size.processes, gpus_per_node=size.gpus or None,
                cpus_per_task=cores, srun_args=srun, **{name: settings[name] for name in _PASSED},
            )  # fmt: skip
            # Where this command runs inside a job, the variables of that job must not reach the new ones, except for
            # the path of Slurm's configuration.
            kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
            with submitit.helpers.clean_env(), submitit.core.utils.environment_variables(**kept):
                submitted = executor.submit_array(jobs)
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            for path in Path(settings["folder"]).iterdir():
                if _LEFT.fullmatch(path.name):
                    path.unlink()
            raise _Refused(" ".join(str(error).split())) from None
        for pack, job, sent in zip(packs, jobs, submitted, strict=True):
            kept_ticket = Ticket(sent.job_id, str(sent.paths.stderr), job.submitted)
            for request in pack:
                kept_ticket.keep(request.run)
            self._sent(pack, kept_ticket)
        self._in_queue += len(jobs)
        runs, number = sum(map(len, packs)), submitted[0].job_id.partition("_")[0]
        log.info("Submitted %d runs in %d jobs as %s; logs in %s", runs, len(jobs), number, executor.folder)

    def wait(self, poll: float) -> dict[Path, str]:
        """Waits until every run has had a job and none is in the queue; returns the reason of each run that has failed.

        A job that is requeued (after preemption or a time limit, or by hand) is waited for.

        Args:
            poll: seconds between two queries of the queue.
        """
        missed: Counter[Path] = Counter()
        closed: set[Path] = set()
        logged = None
        while self.unsent or self.tickets.keys() - closed:
            current = _queue_or_none()
            if current is not None:
                for run in [run for run in self.tickets if run not in closed]:
                    job, finished = self.tickets[run], self.requested[run].complete
                    alive = current.has(job.job) or (current.ends(job.job) and not finished)
                    missed[run] = 0 if alive else missed[run] + 1
                    if missed[run] >= (1 if finished else _MISSES):
                        closed.add(run)
                        if not finished:
                            self.failed[run] = failure_reason(run, job, current.states.get(job.job))
                if logged != (logged := self._summary(current, closed)):
                    log.info(logged)
                if self.unsent:
                    self._submit_more()
            if self.unsent or self.tickets.keys() - closed:
                time.sleep(poll)
        return self.failed

    def _submit_more(self) -> None:
        try:
            self.submit()
        except UserError as error:
            if not self.tickets:
                raise
            log.warning("%s Waiting.", error)

    def _summary(self, current: Queue, closed: set[Path]) -> str:
        opened = self.tickets.keys() - closed
        done = {run for run in opened if self.requested[run].complete}
        running = sum(current.runs(self.tickets[run].job) for run in opened - done)
        queued = sum(current.has(self.tickets[run].job) for run in opened - done) - running
        runs, finished = len(self.tickets) + len(self.unsent), len(closed - self.failed.keys()) + len(done)
        causes = sorted({why for run in opened if (why := current.reasons.get(self.tickets[run].job))})
        waiting = f"{queued} queued" + (f" ({', '.join(causes)})" if causes else "")
        text = f"{counted(runs, 'run')}: {finished} finished, {running} running, {waiting}, {len(self.failed)} failed"
        return text + (f", {len(self.unsent)} not submitted yet." if self.unsent else ".")


def _queue_or_none() -> Queue | None:
    """The queue, or None while Slurm's controller does not answer; the jobs continue even while it restarts."""
    try:
        return queue()
    except UserError as error:
        log.warning("%s Waiting.", error)
        return None


class _Refused(Exception):
    """Slurm has refused an array of jobs; the message is its reason."""
