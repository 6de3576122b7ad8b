"""Charts of one column against another, and differences to a reference."""

import re
from pathlib import Path

import pytest
from chromium import AXE, CHECK, browsing

from subquad.report.html.charts import scatters
from subquad.report.html.site import write_site
from subquad.report.html.view_models import table_facts
from subquad.results.model import FULL, CellResult, CellResults, Content, TableResults
from subquad.results.statistics import summarise
from subquad.results.table import load
from subquad.results.verdict import Verdict
from subquad.utils.errors import UserError

TABLE = """
title: Accuracy and speed
source: nowhere
seeds: 3
reference: softmax
charts: [[speed, accuracy]]
metric: {name: test/accuracy, label: accuracy, scale_by: 100, unit: "%"}
columns:
  accuracy: [task=digits]
  speed: {measure: {_target_: subquad.results.measures.setting, key: backbone.dim}, metric: {label: speed to softmax}}
rows: {softmax: [attention=softmax], linear: [attention=linear], dba: [attention=dba], luna: [attention=luna]}
"""
VALUES = {
    ("softmax", "accuracy"): {0: 90.0, 1: 91.0, 2: 92.0}, ("softmax", "speed"): {0: 1.0},
    ("linear", "accuracy"): {0: 80.0, 1: 81.5, 2: 81.0}, ("linear", "speed"): {0: 10.0},
    ("dba", "accuracy"): {0: 70.0, 1: 99.0}, ("dba", "speed"): {0: 100.0},
    ("luna", "accuracy"): {0: 60.0},
}  # fmt: skip


@pytest.fixture
def part(tmp_path: Path) -> TableResults:
    return filled(tmp_path, TABLE, VALUES)


def filled(folder, text, values_of, baselines=None):
    path = folder / "table.yaml"
    path.write_text(text)
    table = load(path, "table")

    def result(place):
        values = values_of.get(place, {})
        summary = summarise(values) if values else None
        return CellResult(
            scope=FULL, verdict=Verdict.NOT_PRINTED if values else Verdict.NOT_RUN, values=values, summary=summary,
            text=summary.text(1) if summary else "", baselines=baselines or {},
        )  # fmt: skip

    cells = {
        place: CellResults(cell=cell, anchor="-".join(place), command="", results=(result(place),))
        for place, cell in table.cells.items()
    }
    return TableResults(table=table, command="", cells=cells)


def test_rows_with_both_values_are_points_with_their_intervals(part):
    [chart] = scatters(part)
    softmax, linear, dba = chart.spec["points"]  # luna has no speed
    assert [point["name"] for point in (softmax, linear, dba)] == ["softmax", "linear", "dba"]
    assert (softmax["x"], softmax["y"]) == (1.0, pytest.approx(91))
    assert dba["half"] == pytest.approx(184, abs=1)
    assert linear["href"] == "#linear-accuracy"
    assert "accuracy 80.8" in linear["text"]


def test_scores_without_a_model_are_lines_unless_far_from_all_means(tmp_path):
    [chart] = scatters(filled(tmp_path, TABLE, VALUES, {"majority class": 10.0, "nearest class": 78.0}))
    assert chart.spec["levels"] == [["nearest class", 78.0]]  # the means are 80.8 to 91


def content_of(part):
    return Content(
        tables=[part], runs=[], own=[], project=[], outdated=[], broken=[], failed=[], unfinished=0, pictures=[],
        benches=[], made="today",
    )  # fmt: skip


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    yield from browsing(tmp_path_factory.mktemp("profile"))


@pytest.mark.slow
def test_names_of_close_points_cover_no_other_name(tmp_path, browse):
    names = [f"mechanism {i}" for i in range(24)]
    rows = "rows: {" + ", ".join(f"{name}: [attention=dba, seed={i}]" for i, name in enumerate(names)) + "}"
    text = TABLE.partition("rows:")[0].replace("reference: softmax\n", "") + rows
    near = {(name, "accuracy"): {0: 80.0 + i / 50} for i, name in enumerate(names[:-1])}
    values = near | {(name, "speed"): {0: 1.0 + i / 500} for i, name in enumerate(names)}
    values |= {(names[-1], "accuracy"): {0: 40.0}, (names[-1], "speed"): {0: 100.0}}
    write_site(tmp_path, content_of(filled(tmp_path, text, values)))
    shown = 'return [...document.querySelectorAll(".stage svg > text")].map((text) => text.textContent)'
    page, axe = tmp_path / "tables/table.html", AXE.read_text(encoding="utf-8")
    for width in (1440, 390):
        assert browse(page, CHECK, width=width, before=axe)["overlaps"] == 0
        drawn = browse(page, shown, width=width)
        assert "mechanism 23" in drawn
        assert len(drawn) > 5


def test_the_page_says_what_differs_from_the_reference(part):
    [found] = table_facts(part, lambda run: "")["differences"]
    assert (found["scope"], found["columns"]) == (FULL, ["accuracy"])
    assert {row["name"]: [cell and cell["word"] for cell in row["cells"]] for row in found["rows"]} == {
        "linear": ["worse"],  # -10, -9.5, -11
        "dba": [""],  # -20, +8
    }
    assert found["rows"][0]["cells"][0]["difference"] == "-10.17"


def test_where_nothing_is_printed_the_page_shows_what_differs_first_and_no_verdicts(part, tmp_path):
    write_site(tmp_path, content_of(part))
    above, _, page = (tmp_path / "tables/table.html").read_text().partition('id="scatter"')
    differences, _, grid = page.partition('class="grid')
    assert 'id="differences"' in differences
    assert "printed" not in re.sub("<[^>]*>", "", above.partition("<h1>")[2])
    shown = grid.partition("</table>")[0]
    assert '<span class="n">91.0</span><small>±1.0</small>' in shown
    assert "not run" in shown
    assert not re.search(r"nothing printed|\bnew\b", re.sub("<[^>]*>", " ", shown))


@pytest.mark.parametrize(
    ("old", "new"), [("[speed, accuracy]", "[speed, width]"), ("reference: softmax", "reference: x")]
)
def test_a_chart_or_a_reference_that_does_not_exist_is_refused(tmp_path, old, new):
    path = tmp_path / "table.yaml"
    path.write_text(TABLE.replace(old, new))
    with pytest.raises(
        UserError, match=r"there is no (column width|row x), which charts, needs, costs or reference names"
    ):
        load(path, "table")
