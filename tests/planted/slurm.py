"""Planted bugs of runs on a cluster."""

from planted import Bug

SLURM, QUEUE, JOB = "run/slurm.py", "run/slurm_queue.py", "run/slurm_job.py"
LAUNCHER = "../hydra_plugins/subquad/slurm.py"
TESTS = "tests/run/test_slurm.py"

BUGS = [
    Bug("a run in the queue is submitted again", SLURM, "if job is not None and now.has(job.job):", "if False:", TESTS),
    Bug("a finished run is submitted", SLURM, "if records.complete(each.run, each.evaluations):", "if 0:", TESTS),
    Bug("runs of all sizes in one array", SLURM, "if each.size == size]", "]", TESTS),
    Bug("a job is gone at the first look", SLURM, "(1 if finished else _CERTAIN)", "1", TESTS),
    Bug("a job that came back is still missed", SLURM, "0 if alive else", "0 if 0 else", TESTS),
    Bug("a job that is being ended is gone", SLURM, "now.ends(job.job) and", "False and", TESTS),
    Bug("evaluations are no work", SLURM, "records.complete(run, evaluations[run])", "records.complete(run)", TESTS),
    Bug("jobs inherit the ranks around them", SLURM, "with submitit.helpers.clean_env(), ", "with ", TESTS),
    Bug("jobs do not find Slurm", SLURM, '("SLURM_CONF",)', "()", TESTS),
    Bug("one process on each machine", SLURM, "trainer.devices if trainer.get", "1 if trainer.get", TESTS),
    Bug("GPUs for CPU runs", SLURM, 'trainer.accelerator != "cpu" and has', "has", TESTS),
    Bug("ended jobs count as queued", QUEUE, "self.states[job] not in (*_ENDED,", "self.states[job] not in (", TESTS),
    Bug("an old error is why", QUEUE, "records.read_error(run, job.submitted)", "records.read_error(run, 0)", TESTS),
    Bug("the reason is not kept", QUEUE, "records.write_error(message, job.last_words, run)", "pass", TESTS),
    Bug("a job without progress goes round for ever", JOB, "if not got_further and", "if False and", TESTS),
    Bug("any old checkpoint is progress", JOB, " and last.stat().st_mtime >= self.started", "", TESTS),
    Bug("a job preempted early on fails", JOB, "time.time() - self.started > self.seconds / 2", "True", TESTS),
    Bug("lost connections are errors of the run", "run/train.py", "if told_to_go() or", "if", TESTS),
    Bug("a job that was told does not know", JOB, "    _told = True", "    _told = False", TESTS),
    Bug("workers queue the job again", JOB, "signal.signal(name, signal.SIG_IGN)", "pass", TESTS),
    Bug("SIGTERM ends a job", "run/trainer.py", "trainer.callbacks.append(UntilKilled())", "pass", TESTS),
    Bug("Lightning queues jobs too", "run/trainer.py", "auto_requeue=False", "auto_requeue=True", TESTS),
    Bug("a job does not wait for a dead one's lock", "run/processes.py", "return 180.0 if", "return 0.0 if", TESTS),
    Bug("failed jobs count as finished", LAUNCHER, "outcome.status = JobStatus.FAILED", "pass", TESTS),
    Bug("jobs are sweeps again", LAUNCHER, "if not word.startswith(_OF_THE_SWEEP)", "", TESTS),
    Bug("a launcher of one run is ignored", "run/doors.py", "_check_launcher(sys.argv[1:])", "pass", TESTS),
]  # fmt: skip
