"""Means over cells: by seed, and whether the printed ones are right."""

from pathlib import Path

import pytest

from subquad.results.mean import mean_values, misprinted
from subquad.results.table import load

TABLE = """
title: Two sets
source: nowhere
seeds: 1
columns: {a: [task=a], b: [task=b], Avg.: {mean: true}}
rows: {one: [attention=softmax]}
printed: {one: "%s"}
"""


def test_a_mean_takes_the_seeds_that_all_cells_have():
    assert mean_values([{0: 1.0, 1: 2.0, 2: 9.0}, {1: 4.0, 0: 3.0}]) == {0: 2.0, 1: 3.0}
    assert mean_values([{0: 1.0}, {1: 2.0}]) == {}
    assert mean_values([]) == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("10.1 20.2 15.15", None),
        ("10.1 20.2 15.2", None),
        ("10.1 20.2 15.10", None),  # 10.05 and 20.15 could be behind the cells
        ("10.1 20.2 15.09", (15.09, 15.15)),
        ("10.1 20.2 15.3", (15.3, 15.15)),
        ("10.1 words 15.3", None),
        ("10.1 20.2 ?", None),
        ("10.1 ? 15.3", None),
    ],
)
def test_a_printed_mean_may_be_off_by_the_rounding_of_it_and_of_its_cells(tmp_path: Path, line, wrong):
    file = tmp_path / "1.yaml"
    file.write_text(TABLE % line)
    found = misprinted(load(file, "paper/1"))
    assert found == ({} if wrong is None else {("one", "Avg."): pytest.approx(wrong)})
