"""Cells in two steps: runs that start from other runs, and runs that are evaluated on other data."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from runs import TINY, composed, finish, one_thread, trained, weights

from subquad import records
from subquad.config.compose import compose_run
from subquad.config.fingerprint import run_of, weights_name
from subquad.results.cells import RunIndex, RunSpec, merged
from subquad.results.collect import results_of
from subquad.results.table import load
from subquad.results.verdict import Verdict, cell_verdict
from subquad.training.evaluation import evaluate, evaluate_missing
from subquad.utils.errors import UserError

TABLE = """
title: Chains
source: nowhere
seeds: 2
overrides: [task=lra/listops, backbone=blrp]
metric: {name: test/accuracy, scale_by: 100}
columns:
  x1: []
  x2: {eval_data: {multiply: 2}}
  x3: {eval_data: {multiply: 3}}
rows:
  Fresh: []
  Tuned: {overrides: [optimizer.lr=1e-5], init_from: [task=lra/listops, backbone=blrp]}
  Lower: {overrides: [optimizer.lr=1e-6], init_from: [task=lra/listops, backbone=blrp]}
printed:
  Fresh: 40.0 30.0 20.0
  Tuned: 40.0 30.0 20.0
  Lower: 40.0 30.0 20.0
"""
ENCODER = [word for word in TINY if "layers" not in word]
RUN = "0123456789ab-s0"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text(TABLE)
    return load(path, "chains")


@pytest.fixture
def runs(outputs):
    return RunIndex([f"paths.outputs={outputs}", "scale=smoke"])


def test_weights_of_a_run_are_known_by_the_run_wherever_it_lies(tmp_path):
    def name(place):
        return weights_name(Path(place))

    here = name(f"/a/runs/task/dba/{RUN}/checkpoints/best.ckpt")
    assert here == name(f"elsewhere/{RUN}/checkpoints/best.ckpt")
    others = (f"/a/{RUN[:-1]}1/checkpoints/best.ckpt", f"/a/{RUN}/checkpoints/last.ckpt", f"/a/{RUN}/best.ckpt")
    assert len({here, *map(name, others)}) == 4
    for place in ("a.ckpt", "b.ckpt"):
        (tmp_path / place).write_bytes(b"weights")
    first = name(tmp_path / "a.ckpt")
    assert first == name(tmp_path / "b.ckpt")
    (tmp_path / "a.ckpt").write_bytes(b"others!")
    assert name(tmp_path / "a.ckpt") != first
    assert run_of(tmp_path / "a.ckpt") is None
    assert run_of(Path("/a/other_project/checkpoints/best.ckpt")) is None


@pytest.mark.slow
def test_outputs_may_move_and_a_run_that_starts_from_another_is_found_again(table, tmp_path):
    def found(outputs):
        return RunIndex([f"paths.outputs={outputs}", "scale=smoke"]).run_of(table.cells["Tuned", "x1"], 1).folder

    assert found(tmp_path / "a").relative_to(tmp_path / "a") == found(tmp_path / "b").relative_to(tmp_path / "b")


@pytest.mark.slow
def test_a_start_comes_first_is_shared_and_has_seed_0(table, runs):
    jobs = runs.specs(table, [0, 1])
    start = runs.spec(("task=lra/listops", "backbone=blrp"), 0)
    assert [job.folder for job in jobs].count(start.folder) == 1
    tuned = [job for job in jobs if job.init_from is not None]
    assert len(jobs) == 6  # the start is the fresh run of seed 0
    assert len(tuned) == 4
    assert {job.init_from.folder for job in tuned} == {start.folder}
    assert all(jobs.index(job) > [j.folder for j in jobs].index(start.folder) for job in tuned)
    for job in tuned:
        assert Path(compose_run(job.overrides).ckpt_path) == start.folder / "checkpoints" / "best.ckpt"
        assert Path(compose_run(job.command).paths.run) == job.folder


def test_evaluations_of_one_run_are_asked_of_one_job(table, runs):
    fresh = runs.specs(table, [0])[0]
    assert fresh.evaluations == ({"multiply": 2}, {"multiply": 3})
    assert fresh.command == (*fresh.overrides, "evaluate=[{multiply:2},{multiply:3}]")
    assert compose_run(fresh.command).evaluate == [{"multiply": 2}, {"multiply": 3}]
    finish(fresh, 0.5, [({"multiply": 2}, 0.25)])
    assert not fresh.finished
    finish(fresh, 0.5, [({"multiply": 3}, 0.125)])
    assert fresh.finished
    results = {place: cell.results[0] for place, cell in results_of(table, runs, seeds=[0]).cells.items()}
    assert results["Fresh", "x3"].values == {0: 12.5}
    assert results["Fresh", "x1"].values == {0: 50.0}
    assert results["Tuned", "x2"].values == {}
    assert results["Fresh", "x1"].baselines
    assert not results["Fresh", "x3"].baselines  # those of the record are scores on its own test split


def test_values_of_changes_are_written_as_the_command_line_reads_them():
    changes = {"size": 128, "folder": "/a b/it's", "none": None, "flag": True, "sizes": [1, 2.5]}
    job = RunSpec(("task=digits",), Path("x"), evaluations=(changes,))
    assert compose_run(job.command).evaluate == [changes]


@pytest.mark.slow
def test_a_start_is_not_trained_for_what_has_finished(table, runs):
    only = table.select(["Tuned"])
    start, *tuned = runs.specs(only, [0])
    assert start.folder == tuned[0].init_from.folder
    assert len(tuned) == 1
    finish(tuned[0], 0.5, [({"multiply": 2}, 0.1), ({"multiply": 3}, 0.1)])
    assert runs.specs(only, [0]) == tuned
    assert merged([replace(tuned[0], evaluations=({"multiply": 9},))])[0] == start


def test_a_chained_cell_needs_all_seeds(table):
    cell = table.cells["Fresh", "x2"]
    assert cell_verdict(cell, {0: 30.0}, full=True) is Verdict.INCOMPLETE
    assert cell_verdict(cell, {0: 30.0, 1: 30.0}, full=True) is Verdict.REPRODUCED


def test_what_a_run_or_its_start_lacks_is_said_once(table, tmp_path, monkeypatch):
    asked = []

    def missing(settings):
        asked.append(settings)
        return "no reviews" if settings["_target_"].endswith("ByteText") else None

    monkeypatch.setattr("subquad.results.cells.missing_data", missing)
    runs = RunIndex([f"paths.outputs={tmp_path}", "scale=smoke"])
    fine, reviews = (runs.spec((f"task={task}",), 0) for task in ("lra/listops", "lra/text"))
    assert runs.missing_data(fine) is None
    assert runs.missing_data(replace(fine, init_from=reviews)) == "no reviews"
    assert runs.missing_data(runs.spec(("task=lra/text",), 1)) == "no reviews"
    assert len(asked) == 2


@pytest.mark.slow
def test_a_run_starts_only_from_one_that_has_finished(data, outputs):
    words = ("task=lra/listops", "scale=smoke", "backbone=blrp", *ENCODER)
    first = composed(data, outputs, *words)
    start = Path(first.paths.run)
    second = composed(data, outputs, *words, "optimizer.lr=1e-12", f"ckpt_path={start}/checkpoints/best.ckpt")
    with pytest.raises(UserError, match=r"starts from has not finished .*train that one first"):
        trained(second)
    record = trained(first)
    records.write(record, start)
    trained(second)
    assert Path(second.paths.run) != start
    found, expected = weights(Path(second.paths.run)), weights(start)
    assert all(found[name].allclose(expected[name], atol=1e-6) for name in expected)

    with one_thread():
        asked = composed(data, outputs, *words, "evaluate=[{multiply:2},{multiply:3}]")
        assert asked.paths.run == first.paths.run
        evaluate_missing(asked)
        values = [records.read_evaluation(start, {"multiply": copies}) for copies in (2, 3)]
        assert values == [{"test/accuracy": evaluate(start, "test", {"multiply": copies})[1]} for copies in (2, 3)]
        state = records.evaluation_place(start, {"multiply": 2}).stat().st_mtime_ns
        evaluate_missing(asked)
        assert records.evaluation_place(start, {"multiply": 2}).stat().st_mtime_ns == state
        with pytest.raises(SystemExit, match=r"evaluate is \[3\]; choose a list of"):
            evaluate_missing(composed(data, outputs, *words, "evaluate=[3]"))
        with pytest.raises(UserError, match=r"have no data\.copies"):
            evaluate_missing(composed(data, outputs, *words, "evaluate=[{copies:3}]"))
        assert "have no data.copies" in json.loads((start / records.ERROR).read_text())["message"]
        evaluate_missing(asked)
        assert not (start / records.ERROR).exists()
    place = records.evaluation_place(start, {"multiply": 2})
    place.write_text("{")
    with pytest.raises(UserError, match="is not an evaluation of this version"):
        records.read_evaluation(start, {"multiply": 2})
