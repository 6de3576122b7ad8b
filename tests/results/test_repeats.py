"""Runs that differ in their seed only are one line, in the report and at the end of a sweep."""

from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from made_pages import finish
from omegaconf import OmegaConf

from hydra_plugins.subquad.workers_launcher import Workers
from subquad.results.repeats import repeats
from subquad.results.scan import read_run
from subquad.sweep.outcome import show_outcome


def made(base: Path) -> list[Path]:
    """Three seeds of two settings of DBA, one of softmax on another task, and a folder without a record."""
    runs = [
        (f"{'1' * 12}-s0", 0.90, 0, ["attention=dba", "attention.d_p=2", "recipe=luna", "seed=0", "paths.data=/d"]),
        (f"{'2' * 12}-s0", 0.50, 0, ["attention=dba", "attention.d_p=4", "recipe=luna", "seed=0"]),
        (f"{'1' * 12}-s1", 0.94, 1, ["attention=dba", "attention.d_p=2", "recipe=luna", "seed=1"]),
        (f"{'1' * 12}-s2", float("nan"), 2, ["attention=dba", "attention.d_p=2", "recipe=luna", "seed=2"]),
    ]
    for name, score, seed, overrides in runs:
        finish(base / name, score, seed, "dba", overrides=overrides)
    finish(base / f"{'3' * 12}-s0", 0.25, 0, task="a", overrides=["recipe=blrp"])
    return [*(base / name for name, *_ in runs), base / f"{'3' * 12}-s0", base / "unfinished"]


def test_a_line_has_the_seeds_and_the_settings_that_the_others_of_its_task_lack(tmp_path):
    lines = repeats(run for folder in made(tmp_path) if (run := read_run(folder)) is not None)
    assert [(line.settings, line.score, len(line.runs)) for line in lines] == [
        ("", "25.00 %", 1), ("attention.d_p=2", "92.00 ± 2.83 %", 3), ("attention.d_p=4", "50.00 %", 1)
    ]  # fmt: skip


def test_lines_that_nothing_else_tells_apart_have_fingerprints(tmp_path):
    for name, score in (("1" * 12, 0.5), ("2" * 12, 0.25)):
        finish(tmp_path / f"{name}-s0", score, 0, "mine", overrides=["attention=mine", "sweep.workers=1"])
    lines = repeats(run for folder in sorted(tmp_path.iterdir()) if (run := read_run(folder)) is not None)
    assert [(line.settings, line.score) for line in lines] == [
        (f"fingerprint {'1' * 12}", "50.00 %"), (f"fingerprint {'2' * 12}", "25.00 %")
    ]  # fmt: skip


def test_a_sweep_ends_with_one_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    launcher = Workers()
    launcher.config = OmegaConf.create({"hydra": {"sweeper": {"_target_": "BasicSweeper"}}})
    ended = [
        JobReturn(
            status=JobStatus.COMPLETED,
            hydra_cfg=OmegaConf.create({"hydra": {"runtime": {"output_dir": str(folder)}}}),
        )
        for folder in made(tmp_path)[:-1]
    ]
    monkeypatch.setattr(launcher, "_launch", lambda *_: [*ended, JobReturn(status=JobStatus.FAILED)])
    launcher.launch([], 0)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "dba on digits attention.d_p=2 accuracy 92.00 ± 2.83 % 3 1,234,567 1 min 15 s" in lines
    launcher.config.hydra.sweeper._target_ = "hydra_plugins.subquad.job_list_sweeper.JobList"
    launcher.launch([], 0)
    assert capsys.readouterr().out == ""


def test_a_single_run_has_its_own_summary_only(tmp_path, capsys):
    show_outcome(OmegaConf.create({}), made(tmp_path)[-2:])
    assert capsys.readouterr().out == ""
