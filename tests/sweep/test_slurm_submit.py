"""Runs submitted to Slurm and waited for, with scripts in place of Slurm's commands."""

import json
import os
import time
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from unittest import mock

import pytest
from omegaconf import OmegaConf
from slurm_requests import wanted

from hydra_plugins.subquad.slurm_launcher import Slurm
from subquad import records
from subquad.sweep.requested import RequestedRun, Size
from subquad.sweep.slurm import submit as slurm
from subquad.sweep.slurm.queue import Queue, Ticket, failure_reason, is_full, queue, ticket
from subquad.sweep.slurm.submit import Jobs, size_of
from subquad.utils.errors import UserError

TRAINER = {"accelerator": "cpu", "devices": 1, "num_nodes": 1}


def submit(requested: list[RequestedRun], settings) -> dict[Path, Ticket]:
    """The jobs of runs after the first attempt to submit them."""
    jobs = Jobs(requested, settings)
    jobs.submit()
    return jobs.tickets


def wait(requested: list[RequestedRun], settings, tickets: dict[Path, Ticket]) -> dict[Path, str]:
    """Why runs failed that have these jobs."""
    jobs = Jobs(requested, settings)
    jobs.tickets, jobs.unsent = dict(tickets), {}
    return jobs.wait(poll=0)


def submitted(commands: Path) -> list[str]:
    return [path.read_text() for path in sorted(commands.glob("submitted.*"))]


def test_runs_of_one_size_are_one_array(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    two = Size(nodes=2, processes=4, gpus=4, cores=5)
    tickets = submit([*wanted(tmp_path, "a", "b", "c"), *wanted(tmp_path, "d", size=two)], settings)
    assert [tickets[tmp_path / name].job for name in "abcd"] == ["7_0", "7_1", "7_2", "8"]
    assert tickets[tmp_path / "b"].log == str(tmp_path / "logs" / "7_1_0_log.err")
    assert ticket(tmp_path / "b") == tickets[tmp_path / "b"]
    array, single = submitted(commands)
    asked = {line.removeprefix("#SBATCH --") for line in array.splitlines() if line.startswith("#SBATCH")}
    assert asked >= {
        "array=0-2%3", "time=240", "signal=USR2@120", "mem=16G", "cpus-per-task=4", "nodes=1", "ntasks-per-node=1",
        "requeue", "job-name=subquad",
    }  # fmt: skip
    assert not any(line.startswith(("partition", "account", "gpus")) for line in asked)
    assert "--kill-on-bad-exit=1 --export=ALL --cpus-per-task=4" in array
    asked = {line.removeprefix("#SBATCH --") for line in single.splitlines()}
    assert asked >= {"nodes=2", "ntasks-per-node=4", "gpus-per-node=4", "cpus-per-task=5", "mem=64G"}


def test_runs_share_jobs(tmp_path, commands, settings):
    """Three runs of a GPU at a time, five in a job; runs of several processes have jobs of their own."""
    pytest.importorskip("submitit")
    gpu, two = Size(1, 1, 1, cores=2), Size(1, 2, 2, cores=2)
    requested = [*wanted(tmp_path, *"abcdefg", size=gpu), *wanted(tmp_path, *"xy", size=two)]
    tickets = submit(requested, settings | {"runs_per_job": 5, "runs_per_gpu": 3})
    assert [ticket.job for ticket in tickets.values()] == [*["7_0"] * 5, *["7_1"] * 2, "8_0", "8_1"]
    packed, separate = submitted(commands)
    assert "cpus-per-task=6\n" in packed
    assert "mem=48G" in packed
    assert "cpus-per-task=2\n" in separate
    assert "mem=32G" in separate
    tickets = submit(wanted(tmp_path / "next", *"abcd"), settings | {"runs_per_gpu": 2})
    assert [ticket.job for ticket in tickets.values()] == ["9_0", "9_0", "9_1", "9_1"]


@pytest.mark.parametrize(
    ("says", "arrays"), [("MaxArraySize            = 2", [2, 2, 1]), ("MaxArraySize = 0", [1] * 5)]
)
def test_an_array_is_no_larger_than_the_cluster_takes(tmp_path, commands, settings, says, arrays):
    pytest.importorskip("submitit")
    (commands / "scontrol.says").write_text(f"Configuration data\n{says}\nMaxJobCount = 10\n")
    submit(wanted(tmp_path, *"abcde"), settings | {"array_parallelism": 1})
    assert [text.count("--array=0-1%1") + 1 for text in submitted(commands)] == arrays


def test_a_time_limit_that_no_job_may_have_is_not_a_full_queue():
    assert is_full("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")
    assert not is_full("Requested time limit is invalid (missing or exceeds some limit)")


def test_runs_of_different_commands_have_jobs_of_their_own(tmp_path, commands, settings):
    """A search gives each trial a variable of its own, which is in the command."""
    pytest.importorskip("submitit")
    runs = wanted(tmp_path, "a", "b")
    assert len({found.job for found in submit(runs, settings | {"runs_per_job": 2}).values()}) == 1
    own = [replace(run, command=(*run.command, f"+a={run.run.name}")) for run in wanted(tmp_path, "c", "d")]
    assert len({found.job for found in submit(own, settings | {"runs_per_job": 2}).values()}) == 2


def limited(commands: Path, most: int) -> None:
    """Makes sbatch refuse more than `most` jobs at a time as Slurm's accounting does; squeue lists those it took."""
    (commands / "sbatch").write_text(
        f"""#!/bin/sh
cd {commands}
n=$(sed -n 's/.*--array=0-\\([0-9]*\\)%.*/\\1/p' $1); n=$((${{n:-0}} + 1))
if [ $(( $(grep -c . squeue.says) + n )) -gt {most} ]; then
  echo sbatch: error: QOSMaxSubmitJobPerUserLimit >&2
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)" >&2
  exit 1
fi
id=$((7 + $(ls | grep -c submitted))); cp $1 submitted.$id
[ $n = 1 ] && echo "$id|RUNNING" >> squeue.says
[ $n = 1 ] || for i in $(seq 0 $((n - 1))); do echo "${{id}}_$i|RUNNING" >> squeue.says; done
echo Submitted batch job $id
"""
    )


def test_runs_above_the_limit_of_a_user_are_submitted_in_waves(tmp_path, commands, settings, caplog):
    pytest.importorskip("submitit")
    caplog.set_level("INFO")
    limited(commands, most=5)
    jobs = Jobs(wanted(tmp_path, *map(str, range(12))), settings)
    jobs.submit()
    assert (len(jobs.tickets), len(jobs.unsent)) == (5, 7)
    assert "7 runs wait until Slurm takes more jobs" in caplog.text

    def finish(*_):  # all jobs but one end between two queries
        *ended, last = (commands / "squeue.says").read_text().splitlines()
        (commands / "squeue.says").write_text(f"{last}\n" if ended else "")
        for run, job in jobs.tickets.items():
            if not (run / records.RESULT).exists() and (f"{job.job}|RUNNING" in ended or not ended):
                records.write_json(run / records.RESULT, {})

    with mock.patch.object(slurm.time, "sleep", finish):
        assert jobs.wait(poll=0) == {}
    assert len(jobs.tickets) == 12
    assert "12 runs: 4 finished, 1 running, 0 queued, 0 failed, 7 not submitted yet." in caplog.text
    assert not [path for path in (tmp_path / "logs").iterdir() if slurm._LEFT.fullmatch(path.name)]


def test_a_refusal_of_some_runs_leaves_the_others_to_their_jobs(tmp_path, commands, settings):
    """Slurm takes the first size, and then refuses the second, as for a partition without such nodes."""
    pytest.importorskip("submitit")
    limited(commands, most=100)
    sbatch = (commands / "sbatch").read_text()
    refusing = "grep -q gpus-per-node $1 && { echo Requested node configuration is not available >&2; exit 1; }"
    (commands / "sbatch").write_text(sbatch.replace("#!/bin/sh\n", f"#!/bin/sh\n{refusing}\n"))
    jobs = Jobs([*wanted(tmp_path, "a"), *wanted(tmp_path, "b", size=Size(1, 1, 8, 4))], settings)
    jobs.submit()
    records.write_json(tmp_path / "a" / records.RESULT, {})
    (commands / "squeue.says").write_text("")
    assert [*jobs.wait(poll=0)] == [tmp_path / "b"]
    assert "Requested node configuration is not available" in records.read_error(tmp_path / "b", 0)


def test_what_is_finished_or_in_the_queue_is_not_submitted(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    for name, job in {"waits": "3_1", "failed": "3_2", "gone": "3_3"}.items():
        Ticket(job, "log", 0.0).keep(tmp_path / name)
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / records.RESULT).write_text("{}")
    (commands / "squeue.says").write_text("3_1|PENDING\n3_2|FAILED\n9|RUNNING\n")
    tickets = submit(wanted(tmp_path, "waits", "failed", "gone", "done", "new", "new"), settings)
    assert {run.name: job.job for run, job in tickets.items()} == {
        "waits": "3_1", "failed": "7_0", "gone": "7_1", "new": "7_2",
    }  # fmt: skip
    assert len(submitted(commands)) == 1


def test_a_job_around_the_command_says_nothing_of_itself_to_new_jobs(tmp_path, commands, settings, monkeypatch):
    pytest.importorskip("submitit")
    for name, value in {"SLURM_NTASKS": "8", "RANK": "3", "SLURM_CONF": "/here"}.items():
        monkeypatch.setenv(name, value)
    submit(wanted(tmp_path, "a"), settings)
    seen = (commands / "environment").read_text().splitlines()
    assert "SLURM_CONF=/here" in seen
    assert not any(line.startswith(("SLURM_NTASKS=", "RANK=")) for line in seen)
    assert os.environ["SLURM_NTASKS"] == "8"
    assert os.environ["SLURM_CONF"] == "/here"


def test_a_refusal_of_slurm_is_one_sentence(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    (commands / "sbatch").write_text("#!/bin/sh\necho sbatch: error: invalid partition specified: gpu >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"invalid partition specified: gpu.*see the keys of hydra.launcher"):
        submit(wanted(tmp_path, "a"), settings)
    with pytest.raises(UserError, match="signal_delay_s is 14400; it must lie between 0 and the 14400 seconds"):
        submit(wanted(tmp_path, "a"), settings | {"signal_delay_s": 240 * 60})
    assert ticket(tmp_path / "a") is None


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("timeout_min", "4:00:00", "a whole number from 1"),
        ("mem_gb", "16G", "a whole number from 1 or null"),
        ("gpus_per_node", "a100:1", "auto, a whole number from 0 or null"),
        ("array_parallelism", None, "a whole number from 1"),
        ("runs_per_gpu", 0, "a whole number from 1"),
        ("setup", "module load cuda", r"a list of \(text\) or null"),
        ("poll_seconds", -1, "a number from 0"),
    ],
)
def test_a_setting_of_another_type_is_refused_before_anything_is_submitted(commands, settings, key, value, allowed):
    pytest.importorskip("submitit")
    launcher = Slurm(**settings | {key: value})
    with pytest.raises(Exception, match=f"hydra.launcher.{key} is .*; choose {allowed}.$"):
        launcher.launch([[]], 0)
    with pytest.raises(UserError, match=f"hydra.launcher.{key} is"):
        Jobs([], settings | {key: value})


@pytest.mark.parametrize(
    ("trainer", "changes", "gres", "size"),
    [
        ({}, {}, "gpu:a100:4", Size(1, 1, 0)),
        ({"accelerator": "auto"}, {}, "(null)\ngpu:a100:4", Size(1, 1, 1)),
        ({"accelerator": "auto"}, {}, "(null)", Size(1, 1, 0)),
        ({"accelerator": "gpu", "devices": 4, "num_nodes": 2, "strategy": {}}, {}, "gpu:4", Size(2, 1, 1)),
        ({"accelerator": "gpu", "devices": 4, "num_nodes": 2, "strategy": {"a": 1}}, {}, "gpu:4", Size(2, 4, 4)),
        ({"devices": 2, "strategy": {"a": 1}}, {}, "gpu:4", Size(1, 2, 0)),
        ({"accelerator": "auto"}, {"gpus_per_node": 2}, "", Size(1, 1, 2)),
        ({"accelerator": "auto"}, {"gpus_per_node": None}, "gpu:4", Size(1, 1, 0)),
    ],
)
def test_a_run_asks_for_what_its_trainer_needs(commands, settings, trainer, changes, gres, size):
    (commands / "sinfo.says").write_text(gres)
    config = OmegaConf.create({"trainer": TRAINER | trainer, "data": {}})
    assert size_of(config, settings | changes) == replace(size, cores=4)


@pytest.mark.parametrize(
    ("setting", "workers", "cores"), [("auto", 0, 4), ("auto", 8, 9), ("auto", "auto", 8), (2, 8, 2), (None, 8, None)]
)
def test_cores_grow_with_the_data_workers(settings, setting, workers, cores):
    config = OmegaConf.create({"trainer": TRAINER, "data": {"num_workers": workers}})
    assert size_of(config, settings | {"cpus_per_task": setting}).cores == cores


def test_processes_are_counted_before_anything_is_submitted(settings):
    config = OmegaConf.create({"trainer": TRAINER | {"devices": "auto", "strategy": {"a": 1}}, "data": {}})
    with pytest.raises(UserError, match=r"trainer.devices is auto; on a cluster set the number"):
        size_of(config, settings)


def looks(*states: dict[str, str] | None):
    """The states that successive queries of the queue return; None if squeue fails."""

    def answers():
        for state in chain(states, repeat(states[-1])):
            yield UserError("squeue failed (x)") if state is None else Queue(state)

    return mock.patch.object(slurm, "queue", side_effect=answers())


def test_a_job_that_is_queued_again_is_waited_for(tmp_path, commands, settings, caplog):
    caplog.set_level("INFO")
    run = tmp_path / "a"
    run.mkdir()
    ends = ["COMPLETING"] * 4  # its processes take their time to end
    there = [{"1": state} for state in ("RUNNING", "FAILED", *ends, "PENDING", "CONFIGURING")]
    with looks(*there[:2], None, *there[2:], {"1": "PREEMPTED"}, {}) as asked:
        reasons = wait(wanted(tmp_path, "a"), settings, {run: Ticket("1", "no log", time.time())})
    assert asked.call_count == 12  # three queries without the job since it was last there
    assert reasons == {run: "Slurm's job 1 is gone and left no record; its log is no log"}
    assert json.loads((run / records.ERROR).read_text())["message"] == reasons[run]
    assert [r.message for r in caplog.records if "run:" in r.message] == [
        "1 run: 0 finished, 1 running, 0 queued, 0 failed.",
        "1 run: 0 finished, 0 running, 0 queued, 0 failed.",
        "1 run: 0 finished, 0 running, 1 queued, 0 failed.",
        "1 run: 0 finished, 1 running, 0 queued, 0 failed.",
        "1 run: 0 finished, 0 running, 0 queued, 0 failed.",
        "1 run: 0 finished, 0 running, 0 queued, 1 failed.",
    ]


def test_a_job_with_a_record_has_finished_when_it_leaves_the_queue(tmp_path, commands, settings):
    (tmp_path / records.RESULT).write_text("{}")
    with looks({"1": "RUNNING"}, {"1": "RUNNING"}, {"1": "COMPLETING"}) as asked:
        assert wait(wanted(tmp_path, "."), settings, {tmp_path: Ticket("1", "log", 0.0)}) == {}
    assert asked.call_count == 3
    assert not (tmp_path / records.ERROR).exists()


def test_a_finished_run_that_lacks_an_evaluation_is_submitted_and_waited_for(tmp_path, commands, settings):
    pytest.importorskip("submitit")
    [plain] = wanted(tmp_path, "a")
    asked = replace(plain, evaluations=({"multiply": 2},))
    records.write_json(plain.run / records.RESULT, {})
    assert submit([plain], settings) == {}
    tickets = submit([asked], settings)
    assert [*tickets] == [plain.run]
    with looks({"7": "RUNNING"}, {"7": "FAILED"}):
        reasons = wait([asked], settings, tickets)
    assert reasons[plain.run].startswith("Slurm's job 7 ended as FAILED and did not evaluate the run; its log is")
    records.write_evaluation(plain.run, {"multiply": 2}, {"test/accuracy": 1.0}, {})
    with looks({"7": "COMPLETED"}):
        assert wait([asked], settings, tickets) == {}
    assert submit([asked], settings) == {}


def test_the_error_of_a_run_is_why_its_job_failed(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    records.write_error("earlier", "trace", tmp_path)
    os.utime(tmp_path / records.ERROR, (100, 100))
    assert failure_reason(tmp_path, Ticket("1", str(log), 50.0), "FAILED") == "earlier"
    message = failure_reason(tmp_path, Ticket("2", str(log), 150.0), "OUT_OF_MEMORY")
    assert message.startswith(
        f"Slurm's job 2 ended as OUT_OF_MEMORY and left no record; its log is {log}. It was killed"
    )
    assert message.endswith("or state the memory that a run may take: trainer.accumulate_grad_batches=4GB.")
    assert json.loads((tmp_path / records.ERROR).read_text())["traceback"] == "one\ntwo"


def test_squeue_is_asked_for_all_of_the_users_jobs(commands, settings):
    (commands / "squeue").write_text('#!/bin/sh\necho "4_1|PENDING|PartitionConfig"; echo "4_2|COMPLETED|None"\n')
    found = queue()
    assert found.has("4_1")
    assert not found.has("4_2")
    jobs = Jobs(wanted(Path("."), "a"), settings)
    jobs.tickets, jobs.unsent = {Path("a"): Ticket("4_1", "log", 0.0)}, {}
    text = jobs._summary(found, set())
    assert text == "1 run: 0 finished, 0 running, 1 queued (PartitionConfig), 0 failed."
    (commands / "squeue").write_text("#!/bin/sh\necho slurm_load_jobs error >&2; exit 1\n")
    with pytest.raises(UserError, match="squeue failed \\(slurm_load_jobs error\\)"):
        queue()
