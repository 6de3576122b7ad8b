"""Charts have the numbers of the results."""

import pytest
from made_pages import build

from subquad.report.html.charts import POINTS, cell_curves, comparisons, cost_chart, run_curves
from subquad.report.mechanism_style import colours
from subquad.results.model import FULL


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.getbasetemp() / "made_pages")


def test_a_comparison_has_means_intervals_and_printed_spreads(made):
    found = comparisons(made.content.tables[0].shown)
    assert [chart.title for chart in found] == ["accuracy %"] * 3
    assert found[0].scope == FULL
    rows = {row["name"]: row for row in found[0].spec["rows"]}
    softmax = rows["Softmax / Accuracy"]
    assert (softmax["mean"], softmax["printed"], softmax["spread"]) == (pytest.approx(89.9), 90.0, 1.0)
    assert softmax["half"] == pytest.approx(10.2, abs=0.1)  # Student, two seeds
    assert (softmax["verdict"], softmax["sign"]) == ("reproduced", "✓")
    assert rows["Mean / Accuracy"]["mean"] == pytest.approx((89.1 + 50) / 2)
    assert "Softmax / Width" not in rows  # counted: has no better side


def test_curves_are_the_history_thinned_to_its_ends(made):
    run = next(run for run in made.content.runs if run.record.seed == 1)
    loss, accuracy = (chart.spec for chart in run_curves(run))
    assert [line["name"] for line in loss["lines"]] == ["train/loss", "val/loss"]
    points = loss["lines"][0]["points"]
    assert (len(points), points[0], points[-1]) == (40, (1, 1.0), (40, 0.025))
    assert dict(accuracy["levels"]) == {"test/accuracy": 0.907, "majority class": 0.101}
    many = {step: {"val/accuracy": step / 10_000} for step in range(1, 10_001)}
    long = type(run)(key="k", record=run.record, command="", history=many)
    [line] = cell_curves([long]).spec["lines"]
    assert POINTS // 2 < len(line["points"]) <= POINTS + 1
    assert line["points"][-1] == (10_000, 1.0)


def test_what_has_no_curve_or_is_no_number_draws_none(made):
    run = made.content.runs[0]
    broken = type(run)(key="k", record=run.record, command="", history={1: {"val/accuracy": float("nan")}})
    assert run_curves(broken) == []
    assert cell_curves([broken]) is None
    assert cell_curves([]) is None


def test_a_mechanism_has_one_colour_and_its_reference_is_dashed():
    lines = cost_chart({"dba": {16: 1.0, 8: 0.5}, "dba_printed": {8: 2.0}, "no attention": {8: 0.1}}, "ms", "t").spec[
        "lines"
    ]
    assert lines[0]["points"] == [[8, 0.5], [16, 1.0]]
    assert lines[0]["colour"] == lines[1]["colour"] == colours("dba") != lines[2]["colour"]
    assert [line["dash"] for line in lines] == [False, False, True]
