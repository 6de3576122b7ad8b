"""Scores that need no model stand where their task is: below a column, beside a row, or nowhere."""

import pytest

from subquad.report.html.view_models import table_facts
from subquad.results.model import FULL, CellResult, CellResults, TableResults
from subquad.results.side_lines import SMALLEST, side_lines
from subquad.results.table import load
from subquad.results.verdict import Verdict

TABLE = """
title: t
source: s
seeds: 1
metric: {{scale_by: 100}}
columns: {{A: [{column}a], B: [{column}b]}}
rows: {{X: [{row}x], Y: [{row}y]}}
printed: {{X: 1.0 2.0, Y: 3.0 4.0}}
"""


def facts(tmp_path, scores, of="row"):
    """Of a table whose cells have these scores."""
    path = tmp_path / "t.yaml"
    path.write_text(TABLE.format(row="task=" if of == "row" else "x=", column="task=" if of == "column" else "x="))
    table = load(path, "t/1")
    cells = {
        place: CellResults(
            cell=cell, anchor=f"c{i}", command="",
            results=(CellResult(scope=FULL, verdict=Verdict.NOT_RUN, baselines=_named(scores.get(place))),),
        )
        for i, (place, cell) in enumerate(table.cells.items())
    }  # fmt: skip
    found = table_facts(TableResults(table=table, command="", cells=cells), lambda run: "")
    return found["side"], [row["side"] for row in found["rows"]], found["foot"]


def _named(score):
    return {} if score is None else {"majority": score}


def test_tasks_in_rows_have_baselines_beside_them(tmp_path):
    assert facts(tmp_path, {("X", "A"): 10.0, ("X", "B"): 10.0, ("Y", "A"): 20.0}) == (
        ["without a model: majority"],
        [["10.0"], ["20.0"]],
        [],
    )
    assert facts(tmp_path, {("X", "B"): 10.0}) == (["without a model: majority"], [["10.0"], [""]], [])


def test_tasks_in_columns_have_baselines_below_them(tmp_path):
    scores = {("X", "A"): 10.0, ("Y", "A"): 10.0, ("Y", "B"): 20.0}
    assert facts(tmp_path, scores, of="column") == ([], [[], []], [("without a model: majority", ["10.0", "20.0"])])


@pytest.mark.parametrize("of", ["row", "column"])
def test_one_number_never_stands_for_several_tasks(tmp_path, of):
    scores = {("X", "A"): 10.0, ("X", "B"): 11.0, ("Y", "A"): 20.0}
    assert facts(tmp_path, scores, of) == ([], [[], []], [])


@pytest.mark.parametrize(("full", "printed"), [(True, True), (False, True), (True, False), (False, False)])
def test_listops_has_its_shortcut_before_the_first_run_and_then_that_of_the_run(tmp_path, full, printed):
    text = TABLE.format(row="task=", column="attention=").replace("task=x", "task=lra/listops")
    text = text.replace("{scale_by: 100}", "{name: test/accuracy, scale_by: 100}")
    (tmp_path / "t.yaml").write_text(text if printed else text.partition("printed:")[0])
    table = load(tmp_path / "t.yaml", "t/1")
    scores = {"X": {}, "Y": {"majority": 12.3}}
    cells = {
        place: CellResults(
            cell=cell, anchor="", command="",
            results=(CellResult(scope=FULL, verdict=Verdict.NOT_RUN, baselines=scores[cell.row]),),
        )
        for place, cell in table.cells.items()
    }  # fmt: skip
    found = side_lines(TableResults(table=table, command="", cells=cells), lambda part: part.results[0], full)
    side = {name: dict(texts) for name, texts in found.side.items()}
    stated = {"without a model: majority class": {"X": "17.0"}, "without a model: root operator only": {"X": "36.2"}}
    counted = {"without a model: majority": {"Y": "12.3" if printed else "12.30"}}
    assert {name: texts for name, texts in side.items() if name != SMALLEST} == counted | (
        stated if full or printed else {}
    )
    assert side.get(SMALLEST) == ({"X": "≥ 0.8"} if printed else None)
