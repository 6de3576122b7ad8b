"""The arena and its table of rates belong together, and the rates of the one are the best of the other."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import ROOT

from subquad.config.choices import CONFIGS
from subquad.results.cells import load_table
from subquad.results.collect import gather_table
from subquad.results.model import FULL, CellResult, CellResults, Scope
from subquad.results.statistics import summarise
from subquad.results.table import load
from subquad.results.verdict import Verdict

SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "arena_rates.py")))


def fake(scores, scopes=()):
    """Results of the rates of one row and task: by rate the score of each seed, or of all; scopes: those not FULL."""
    cell = load_table("arena_rates").cells["softmax", "recall 3.0e-3"]

    def results(rate, score):
        scores = score if isinstance(score, list) else [score] * cell.seeds
        values = {} if score is None else dict(enumerate(scores))
        summary, scope = summarise(values) if values else None, dict(scopes).get(rate, FULL)
        verdict = Verdict.NOT_PRINTED if scope.full else Verdict.OTHER_SCALE
        result = CellResult(scope=scope, verdict=verdict, values=values, summary=summary, text="x" if values else "")
        return CellResults(cell=cell, anchor="", command="", results=(result,))

    return SimpleNamespace(
        cells={("softmax", f"recall {rate}"): results(rate, score) for rate, score in scores.items()}
    )


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({"1.0e-3": 50.0, "3.0e-3": 70.0, "1.0e-2": 60.0}, "3.0e-3"),
        ({"1.0e-3": 50.0, "3.0e-3": 70.0, "1.0e-2": 70.0}, "3.0e-3"),
        ({"1.0e-2": 70.0, "1.0e-3": 70.0, "3.0e-3": 60.0}, "1.0e-3"),
    ],
)
def test_the_best_rate_is_chosen_and_of_equal_ones_the_lowest(scores, chosen):
    assert SCRIPT.best_rates(fake(scores)) == {("softmax", "recall"): chosen}


def test_no_rate_is_chosen_before_all_are_measured_with_all_seeds():
    assert SCRIPT.best_rates(fake({"1.0e-3": 50.0, "3.0e-3": None})) == {}
    lucky = {"1.0e-3": [50.0, 51.0, 52.0], "3.0e-3": [50.0, 60.0]}
    assert SCRIPT.best_rates(fake(lucky)) == {}
    whole = lucky | {"3.0e-3": [50.0, 60.0, 20.0]}
    assert SCRIPT.best_rates(fake(whole)) == {("softmax", "recall"): "1.0e-3"}


def test_runs_of_another_scale_choose_no_rate():
    small = {"3.0e-3": Scope("smoke")}
    scores = {"1.0e-3": 50.0, "3.0e-3": 70.0}
    assert SCRIPT.best_rates(fake(scores, scopes=small)) == {}
    small["1.0e-3"] = small["3.0e-3"]
    assert SCRIPT.best_rates(fake(scores, scopes=small)) == {}
    assert SCRIPT.best_rates(fake(scores, scopes=small), Scope("smoke")) == {("softmax", "recall"): "3.0e-3"}


def test_written_rates_are_those_of_all_cells_of_the_run(tmp_path: Path):
    text = (CONFIGS / "table" / "arena.yaml").read_text()
    rates = {("LION-D", "recall"): "1.0e-2", ("softmax", "ListOps"): "1.0e-3"}
    path = tmp_path / "table.yaml"
    path.write_text(SCRIPT.written(SCRIPT.written(text, {("Mega", "copying"): "3.0e-3"}), rates))
    cells = load(path, "arena").cells
    own = {place for place, cell in cells.items() if any(o.startswith("optimizer.lr=") for o in cell.overrides)}
    assert own == {("LION-D", f"recall {pairs}") for pairs in (8, 16, 64)} | {("softmax", "ListOps")}
    assert "optimizer.lr=1.0e-2" in cells["LION-D", "recall 16"].overrides


def test_both_tables_have_the_same_rows_and_tasks_and_each_task_the_same_rates():
    arena, rates = load_table("arena"), load_table("arena_rates")
    assert arena.rows == rates.rows
    grid: dict[str, set[str]] = {}
    for column in rates.columns:
        task, *_, rate = column.overrides
        assert rate == f"optimizer.lr={column.name.rpartition(' ')[2]}"
        grid.setdefault(task, set()).add(rate)
    assert grid.keys() == {o for c in arena if c.trained for o in c.overrides if o.startswith("task=")}
    assert len({frozenset(chosen) for chosen in grid.values()}) == 1


@pytest.mark.slow
def test_the_rates_are_those_that_the_kept_results_choose(monkeypatch, real_store):
    monkeypatch.setattr("subquad.results.store.FOLDER", real_store)
    cells, rates = load_table("arena").cells, SCRIPT.best_rates(gather_table("arena_rates"))
    assert {row for row, _ in rates} == {row.name for row in load_table("arena").rows}
    for (row, task), rate in rates.items():
        column = "recall 64" if task == "recall" else task
        assert f"optimizer.lr={rate}" in cells[row, column].overrides
