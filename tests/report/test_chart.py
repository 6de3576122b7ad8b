"""Charts put numbers where they belong."""

import pytest
from made_pages import build

from subquad.report.html.chart import POINTS, Axis, axis, cell_curves, comparisons, run_curves
from subquad.report.verdict_style import MARKS
from subquad.results.model import FULL

COLOURS = {verdict: mark.colour for verdict, mark in MARKS.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.getbasetemp() / "made_pages")


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 1, ["0.0", "0.5", "1.0"]),
        (36.2, 38.9, ["37", "38"]),
        (0.5, 4000, ["1,000", "2,000", "3,000", "4,000"]),
        (-0.02, 0.02, ["-0.02", "-0.01", "0.00", "0.01", "0.02"]),
    ],
)
def test_ticks_are_round_and_inside(low, high, texts):
    drawn = Axis(low, high, 0, 100)
    assert [text for _, text in drawn.ticks] == texts
    assert all(-0.1 <= place <= 100.1 for place, _ in drawn.ticks)


def test_an_axis_holds_its_values_and_one_value_has_room():
    assert axis([1, 3], 0, 10).at(2) == pytest.approx(5)
    for values in ([0.0], [7.0], [-3.0]):
        alone = axis(values, 0, 10)
        assert alone.low < values[0] < alone.high


def test_a_comparison_shows_means_intervals_and_printed_spreads(made):
    found = comparisons(made.content.tables[0].shown, COLOURS)
    assert [chart.title for chart in found] == ["accuracy %"] * 3
    full = next(chart for chart in found if chart.scope == FULL)
    along, dots = full.axis, {dot.name: dot for dot in full.dots}
    softmax = dots["Softmax / Accuracy"]
    assert (softmax.ours, softmax.printed) == (along.at(89.9), along.at(90.0))
    assert (softmax.printed_low, softmax.printed_high) == (along.at(89.0), along.at(91.0))
    assert softmax.low < softmax.ours < softmax.high
    assert softmax.colour == "reproduced"
    assert dots["Mean / Accuracy"].ours == along.at((89.1 + 50) / 2)
    assert "Softmax / Width" not in dots  # counted: has no better side


def test_curves_are_the_history_thinned_to_its_ends(made):
    run = next(run for run in made.content.runs if run.record.seed == 1)
    loss, accuracy = run_curves(run)
    assert [name for name, _ in loss.lines] == ["train/loss", "val/loss"]
    points = loss.lines[0][1].split()
    assert len(points) == 40
    assert points[0] == f"{loss.across.at(1)},{loss.up.at(1.0)}"
    assert points[-1] == f"{loss.across.at(40)},{loss.up.at(1 / 40)}"
    assert dict(accuracy.levels) == {
        "test/accuracy": accuracy.up.at(0.907), "majority class": accuracy.up.at(0.101)
    }  # fmt: skip
    many = {step: {"val/accuracy": step / 10_000} for step in range(1, 10_001)}
    long = type(run)(key="k", record=run.record, command="", history=many)
    [line] = cell_curves([long]).lines
    assert POINTS // 2 < len(line[1].split()) <= POINTS + 1
    assert line[1].split()[-1] == f"{404.0},{cell_curves([long]).up.at(1.0)}"


def test_what_has_no_curve_or_is_no_number_draws_none(made):
    run = made.content.runs[0]
    broken = type(run)(key="k", record=run.record, command="", history={1: {"val/accuracy": float("nan")}})
    assert run_curves(broken) == []
    assert cell_curves([broken]) is None
    assert cell_curves([]) is None
