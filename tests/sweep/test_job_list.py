"""A sweep over a list of jobs: stages, failures that do not stop other jobs, an interrupt that stops all."""

import json

import pytest
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import ConfigCompositionException

from hydra_plugins.subquad.job_list_sweeper import JobList
from subquad.config.validate import checked_overrides
from subquad.utils.errors import UserError


class Launcher:
    """Runs nothing: a job succeeds, or fails with the entry of `errors` for its first override."""

    def __init__(self, errors):
        self.errors, self.batches = errors, []

    def launch(self, batch, initial_job_idx):
        self.batches.append((initial_job_idx, [list(words) for words in batch]))
        return [self.done(words) for words in batch]

    def done(self, words):
        error = self.errors.get(words[-1])
        if isinstance(error, (SystemExit, KeyboardInterrupt, ConfigCompositionException)):
            raise error  # Hydra does not turn these into results
        status = JobStatus.FAILED if error else JobStatus.COMPLETED
        return JobReturn(overrides=words, status=status, _return_value=error)


class OneProcess(Launcher, BasicLauncher):
    pass


def sweep(tmp_path, kind, errors=(), waves=(("a", "b"), ("c",))):
    path = tmp_path / "jobs"
    path.write_text("\n".join("".join(json.dumps([word]) + "\n" for word in wave) for wave in waves))
    jobs = JobList(str(path))
    jobs.launcher = kind(dict(errors))
    return jobs


def test_jobs_after_an_empty_line_wait_for_those_before(tmp_path):
    jobs = sweep(tmp_path, Launcher)
    assert len(jobs.sweep(["x=1"])) == 3
    assert jobs.launcher.batches == [(0, [["x=1", "a"], ["x=1", "b"]]), (2, [["x=1", "c"]])]
    alone = sweep(tmp_path, OneProcess)
    alone.sweep([])
    assert alone.launcher.batches == [(0, [["a"]]), (1, [["b"]]), (2, [["c"]])]


@pytest.mark.parametrize(
    "error", [SystemExit("no value"), ConfigCompositionException("no group"), UserError("no data")]
)
def test_a_failed_job_stops_no_other_and_is_told_at_the_end(tmp_path, error):
    jobs = sweep(tmp_path, OneProcess, {"a": error, "c": RuntimeError()})
    with pytest.raises(SystemExit, match="2 of 3 jobs failed; the same command tries them again"):
        jobs.sweep(["x=1"])
    assert len(jobs.launcher.batches) == 3
    told = [json.loads(line) for line in (tmp_path / "jobs.failed").read_text().splitlines()]
    assert told == [[["a"], str(error)], [["c"], "RuntimeError"]]


@pytest.mark.parametrize("stop", [SystemExit(130), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("kind", [Launcher, OneProcess])
def test_an_interrupt_ends_the_sweep_at_once(tmp_path, kind, stop):
    jobs = sweep(tmp_path, kind, {"a": stop})
    with pytest.raises(SystemExit) as ended:
        jobs.sweep([])
    assert ended.value.code == 130
    assert len(jobs.launcher.batches) == 1


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_launchers_of_hydra_and_its_plugins_can_be_chosen(launcher):
    assert checked_overrides([f"hydra/launcher={launcher}"]) == [f"hydra/launcher={launcher}"]
