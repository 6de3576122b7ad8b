"""Which printed differences exceed chance, against numbers computed by hand."""

import dataclasses
import math
import re

import pytest
from scipy import stats

from subquad.config.choices import options
from subquad.config.task_metadata import published_test_rows, task_of
from subquad.data.listops.listops_release import SIZES
from subquad.data.time_series.sets import SETS
from subquad.report.differences_page import differences_page
from subquad.results.cells import load_table
from subquad.results.differences import claimed, estimate, half_width, of_rows, smallest
from subquad.results.table import load
from subquad.utils.errors import UserError

TABLE = """
title: t
source: s
seeds: 5
metric: {name: test/accuracy, scale_by: 100}
columns: {ListOps: [task=lra/listops], Text: [task=lra/text], Mean: {mean: true}}
rows: {Softmax: [attention=softmax], Ours: [attention=dba], Others: [attention=luna]}
printed:
  Softmax: 36.40±0.40 64.00±0.10 50.20
  Ours: 38.10±0.40 66.25±0.10 52.18
  Others: 42.00 60.00 51.00
claims: [{ours: [Ours]}]
"""


def made(tmp_path, text=TABLE):
    (tmp_path / "t.yaml").write_text(text)
    return load(tmp_path / "t.yaml", "t/1")


def differences(table):
    return {(each.over, each.line): each for claim in table.claims for each in claimed(table, claim)}


def test_the_variance_of_test_rows_is_binomial_with_one_right_and_one_wrong_row_more():
    assert math.sqrt(of_rows(0.362, 2000)[0]) == pytest.approx(0.01074, abs=1e-5)
    assert of_rows(36.2, 2000, 100)[0] == pytest.approx(1e4 * of_rows(0.362, 2000)[0])
    assert of_rows(1.0, 15)[0] == pytest.approx(16 / 17 * 1 / 17 / 17)  # of StandWalkJump, all right: not 0


def test_a_difference_is_compared_with_both_variances(tmp_path):
    found = differences(made(tmp_path))
    listops = found["Softmax", "ListOps"]
    rows = [q * (1 - q) / 2002 * 1e4 for q in (729 / 2002, 763 / 2002)]  # 36.4 and 38.1 % of 2,000, and one more
    variance = sum(rows) + 2 * 0.4**2 / 5
    freedom = variance**2 / (2 * (0.4**2 / 5) ** 2 / 4)
    assert listops.difference == pytest.approx(1.7)
    assert listops.half_width == pytest.approx(stats.t.ppf(0.975, freedom) * math.sqrt(variance))
    assert (listops.verdict, listops.spread_known) == ("open", True)
    assert found["Softmax", "Text"].verdict == "carried"
    assert found["Others", "ListOps"].verdict == "opposite"
    assert not found["Others", "Text"].spread_known


def test_few_seeds_count_by_their_degrees_of_freedom():
    only_seeds = ((1.0, 4), (1.0, 4))
    assert half_width(only_seeds) == pytest.approx(stats.t.ppf(0.975, 8) * math.sqrt(2))
    assert half_width(((1.0, math.inf),)) == pytest.approx(1.959964, abs=1e-5)
    assert half_width(((1.0, math.inf), (0.0, 4))) == pytest.approx(1.959964, abs=1e-5)


def test_an_average_has_the_variances_of_its_parts(tmp_path):
    table = made(tmp_path)
    parts = [estimate(table.cells["Ours", column], table.cells) for column in ("ListOps", "Text")]
    mean = estimate(table.cells["Ours", "Mean"], table.cells)
    assert sum(v for v, _ in mean.parts) == pytest.approx(sum(v for part in parts for v, _ in part.parts) / 4)
    assert (mean.value, mean.rows) == (52.18, (2000, 25000))
    assert differences(table)["Softmax", "Mean"].difference == pytest.approx(1.98)


def test_a_claim_may_speak_of_some_columns_only(tmp_path):
    narrow = made(tmp_path, TABLE.replace("{ours: [Ours]}", "{ours: [Ours], at: [Text]}"))
    assert set(differences(narrow)) == {("Softmax", "Text"), ("Others", "Text")}
    with pytest.raises(UserError, match="claims need the names of rows or of columns, not Ours, onn"):
        made(tmp_path, TABLE.replace("{ours: [Ours]}", "{ours: [Ours], onn: [Text]}"))


def test_a_line_needs_the_difference_of_two_average_values(tmp_path):
    axis, (listops, text, _) = smallest(made(tmp_path))
    rows = [of_rows(value, 2000, 100)[0] for value in (36.4, 38.1, 42.0)]
    variance = 2 * (sum(rows) / 3 + 0.4**2 / 5)
    assert (axis, listops.line, text.rows) == ("columns", "ListOps", (25000,))
    assert listops.half_width == pytest.approx(1.96 * math.sqrt(variance), rel=1e-3)
    assert listops.text == "≥ 3.1"  # one of the three values is printed without its spread
    assert dataclasses.replace(listops, spread_known=True).text == "3.1"
    bare = made(tmp_path, re.sub("±[0-9.]+", "", TABLE))
    assert smallest(bare)[1][0].text == "≥ 3.0"


@pytest.mark.parametrize("metric", ["test/rmse", "test/accuracy_number", "value"])
def test_a_metric_that_is_no_share_of_the_test_rows_has_no_difference(tmp_path, metric):
    table = made(tmp_path, TABLE.replace("test/accuracy", metric))
    assert (smallest(table)[1], differences(table)) == ([], {})


def test_a_claim_names_lines_of_one_axis(tmp_path):
    with pytest.raises(UserError, match="claims need the names of rows or of columns, not Ours, Text"):
        made(tmp_path, TABLE.replace("ours: [Ours]", "ours: [Ours], over: [Text]"))


def test_published_test_rows_are_those_that_the_data_know():
    assert all(published_test_rows(known.task) == known.test for known in SETS.values())
    assert published_test_rows("lra/listops") == SIZES["test"]
    rows = {"imagenet": 50_000, "glue/sst2": 872, "lra/retrieval": 17_437, "vqa_v2": 214_354, "uea/custom": None}
    assert {task: published_test_rows(task) for task in rows} == rows


def test_the_task_of_a_cell_is_that_of_task_or_else_of_its_experiment():
    assert task_of(("experiment=blrp/cifar10", "attention=dba")) == "cifar/cifar10"
    assert task_of(("task=uea/libras", "experiment=primal_dual/uea")) == "uea/libras"
    assert task_of(("attention=dba",)) == ""


def test_the_page_counts_the_verdicts_of_the_claims(tmp_path):
    page = differences_page([made(tmp_path)])
    assert "| [t/1](#t1) | Ours | Softmax, Others | 6 | 5 | 3 | 1 | 2 | 1 |" in page
    assert "| ListOps | 2,000 | 0.05 | ≥ 3.1 | +1.70 (3.04) | -3.90 (≥ 3.05), opposite |" in page


def test_all_printed_accuracies_on_known_test_rows_are_judged():
    lines = [line for name in options("table") for line in smallest(load_table(name))[1]]
    walk = [line for line in lines if line.line == "StandWalkJump"]
    assert len(lines) > 100
    assert [(line.rows, round(100 / line.rows[0], 1)) for line in walk] == [((15,), 6.7)]
