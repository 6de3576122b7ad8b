"""Two rows or columns of a table against one another, in sentences with hand-computed numbers."""

from pathlib import Path

import pytest

from subquad.results.compare import compare_lines
from subquad.results.table import Table, load
from subquad.utils.errors import UserError

TABLE = """
title: Two mechanisms on six sets
source: nowhere
seeds: 3
metric: {{name: test/accuracy, scale_by: 100, unit: "%", better: {better}}}
columns:
  A: [attention=dba]
  B: [attention=softmax]
  Width: {{measure: {{_target_: subquad.results.measures.setting, key: backbone.dim}}, metric: {{better: equal}}}}
rows: {{r0: [task=digits], r1: [x=1], r2: [x=2], r3: [x=3], r4: [x=4], r5: [x=5], Avg.: {{mean: true}}}}
"""


def table(folder: Path, better: str = "higher") -> Table:
    path = folder / "table.yaml"
    path.write_text(TABLE.format(better=better))
    return load(path, "two")


def values(lead: float) -> dict[tuple[str, str], dict[int, float]]:
    """A is ahead by lead, 2 lead, ... on average; seeds add -0.1, 0, 0.1 to the lead and tens to both."""
    found = {}
    for row in range(6):
        base = {seed: 50.0 + 10 * seed for seed in range(3)}
        found[f"r{row}", "B"] = base
        found[f"r{row}", "A"] = {seed: base[seed] + (row + 1) * lead + 0.1 * (seed - 1) for seed in base}
    return found


def test_one_line_a_setting_and_one_for_all(tmp_path):
    lines = compare_lines(table(tmp_path), values(0.1), ["A", "B"])
    assert lines == compare_lines(table(tmp_path), values(0.1), ["a", "b"])
    assert len(lines) == 7
    # 4.3027 * 0.1 / sqrt(3) = 0.2484; t = 0.1 / 0.0577 = 1.732 with 2 degrees of freedom
    assert lines[0] == (
        "r0: no difference shown; mean difference +0.1 points [-0.148, +0.348] (95%), p = 0.225, 3 common seeds."
    )
    assert lines[5] == "r5: A beats B; mean difference +0.6 points [+0.352, +0.848] (95%), p = 0.009, 3 common seeds."
    # 2.5706 * 0.18708 / sqrt(6) = 0.1963; six of six: p = 2 / 64
    assert lines[6] == (
        "All: A beats B: A is ahead of B on 6 of 6; mean difference +0.35 points [+0.154, +0.546] (95%); "
        "Wilcoxon signed-rank test over 6 settings, p = 0.031."
    )


def test_the_order_of_the_names_and_a_metric_whose_better_side_is_down_turn_it_round(tmp_path):
    reverse = compare_lines(table(tmp_path), values(0.1), ["B", "A"])
    lower = compare_lines(table(tmp_path, "lower"), values(0.1), ["A", "B"])
    for lines, ahead, behind in ((reverse, "A", "B"), (lower, "B", "A")):
        assert lines[5].startswith(f"r5: {ahead} beats {behind}; mean difference -0.6 points")
        assert lines[6].startswith(f"All: {ahead} beats {behind}: {behind} is ahead of {ahead} on 0 of 6")
        assert "mean difference -0.35 points" in lines[6]


def test_a_few_settings_show_no_difference(tmp_path):
    short = {place: found for place, found in values(5).items() if place[0] in ("r0", "r1", "r2")}
    lines = compare_lines(table(tmp_path), short, ["A", "B"])
    assert lines[0].startswith("r0: A beats B")
    assert lines[3] == "r3: too few common seeds (two are needed)."
    assert lines[6].startswith("All: no difference shown: A is ahead of B on 3 of 3;")
    assert lines[6].endswith("p = 0.250; 3 settings without a common seed.")


def test_only_common_seeds_count(tmp_path):
    apart = {("r0", "A"): {0: 90.0, 1: 91.0, 5: 99.0}, ("r0", "B"): {1: 90.0, 2: 10.0}}
    lines = compare_lines(table(tmp_path), apart, ["A", "B"])
    assert lines[0] == "r0: too few common seeds (two are needed)."
    assert lines[6] == "All: too few settings with common seeds (1 of 6; two are needed)."


def test_rows_are_compared_over_columns(tmp_path):
    lines = compare_lines(table(tmp_path), values(0.1), ["r5", "r0"])
    assert [line.partition(":")[0] for line in lines] == ["A", "B", "All"]  # the width is not trained
    # the same difference with three seeds: the sign test
    assert (
        lines[0] == "A: no difference shown; mean difference +0.5 points [+0.5, +0.5] (95%), p = 0.250, 3 common seeds."
    )
    assert lines[1] == "B: no difference shown; mean difference +0 points [+0, +0] (95%), p = 1.000, 3 common seeds."
    assert "(equal on 1)" in lines[2]
    assert "test over 1 setting, p = 1.000." in lines[2]
    [one] = compare_lines(table(tmp_path).select([], ["A"]), values(0.1), ["r5", "r0"])
    assert one == lines[0]


def test_evaluations_of_the_same_runs_are_one_setting_of_all(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text(TABLE.format(better="higher").replace("r5: [x=5]", "r5: {overrides: [x=4], eval_data: {n: 2}}"))
    lines = compare_lines(load(path, "two"), values(0.1), ["A", "B"])
    assert len(lines) == 7
    # the mean of 0.1, 0.2, 0.3, 0.4 and (0.5 + 0.6) / 2; five of five: p = 2 / 32
    assert lines[6].startswith("All: no difference shown: A is ahead of B on 5 of 5; mean difference +0.31 points")
    assert lines[6].endswith("p = 0.062. Settings that evaluate the same runs count once, with their mean.")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["A"], "must name two rows or two columns of table two"),
        (["A", "A"], "must name two rows"),
        (["A", "r0"], "its rows are r0, r1"),
        (["A", "B", "Width"], "must name two rows"),
        (["A", "Width"], "has no trained cells of both A and Width"),
        (["r0", "Avg."], "has no trained cells of both r0 and Avg."),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, names, reason):
    with pytest.raises(UserError, match=reason):
        compare_lines(table(tmp_path), values(0.1), names)


def test_a_metric_without_a_better_side_is_not_compared(tmp_path):
    with pytest.raises(UserError, match="no better side"):
        compare_lines(table(tmp_path, "equal"), values(0.1), ["A", "B"])
