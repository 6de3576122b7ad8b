"""Which rows differ, and which one to take: by hand-made values, and by the kept results of the arena."""

import numpy as np
import pytest
from made_answers import BENCH, RECALL, TABLE, filled
from scipy import stats

from subquad.report.answers_text import answers_text
from subquad.report.html.answers_view import answer_facts
from subquad.report.html.charts import speed_chart
from subquad.results.answers import answers, column_pairs, need_pairs
from subquad.results.differences import of_rows
from subquad.results.pairs import all_pairs, share_pairs


def needs_of(part):
    pairs = {name: found for name in part.table.needs if (found := column_pairs(part, name))}
    return {need.name: need for need in answers(part, pairs, [BENCH])}


def test_the_answer_is_the_cheapest_of_the_rows_that_are_not_worse_than_the_best(tmp_path):
    need = needs_of(filled(tmp_path))["recall"]
    assert need.equals == ["softmax", "dba"]  # linear is faster and smaller, and recalls little
    assert {cost: pick and (pick.row, pick.text) for cost, pick in need.picks.items()} == {
        "fastest on a CPU": ("dba", "4 × softmax"),
        "smallest state": ("dba", "1,024 numbers passed on"),
        "fastest at 1,024 on G": ("softmax", "2 ms"),  # in inference
    }


def test_times_of_a_processor_are_not_those_of_the_gpu_beside_it(tmp_path):
    bench = {**BENCH, "settings": {"device": "cpu", "layers": 4, "dims": [8]}}
    bench["machine"] = {"cpu": "C", "gpu": "G", "threads": 2}
    part = filled(tmp_path)
    assert [*answers(part, need_pairs(part), [bench])[0].picks] == ["fastest on a CPU", "smallest state"]
    assert "on 2 threads of C." in speed_chart(bench).caption


def test_a_task_that_a_model_without_attention_solves_as_well_decides_nothing(tmp_path):
    found = needs_of(filled(tmp_path))
    assert not found["digits"].decides
    assert not found["digits"].picks
    assert list(found) == ["recall", "digits"]  # one task decides, so that there is no answer for several


def test_rows_without_all_seeds_are_not_measured(tmp_path):
    part = filled(tmp_path)  # luna has one seed of recall, the best score of all, and none of digits
    assert "luna" not in needs_of(part)["recall"].equals
    luna = answer_facts(part, [])["rows"][-1]
    assert [cell["missing"] for cell in luna["cells"]] == ["not measured (1 of 3 seeds)", "not measured (0 of 3 seeds)"]


def test_no_answer_is_given_where_no_best_row_was_measured(tmp_path):
    part = filled(tmp_path, {**RECALL, "linear": [99.9, 100, 100], "softmax": [50, 51, 50], "dba": [50, 50, 51]})
    bench = {**BENCH, "results": [row for row in BENCH["results"] if row["attention"] == "softmax"]}
    assert (
        "| linear, 7 × softmax | linear, 512 numbers passed on | not measured |"
        in answers_text(part, [bench])["answers"]
    )


def test_no_row_is_the_fastest_before_all_rows_that_may_be_are_measured(tmp_path):
    bench = {**BENCH, "results": [row for row in BENCH["results"] if row["attention"] == "softmax"]}
    part = filled(tmp_path)
    [need, _] = answers(part, need_pairs(part), [bench])
    assert need.equals == ["softmax", "dba"]
    assert need.picks["fastest at 1,024 on G"] is None


def test_the_chance_of_a_pair_is_that_of_its_seeds_and_of_the_test_rows():
    a, b = [90.0, 91.0, 92.0, 93.0], [80.0, 82.0, 81.0]
    values = {"a": dict(enumerate(a)), "b": dict(enumerate(b))}
    [without] = share_pairs(values, None)
    assert without.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    [pair] = share_pairs(values, 500, 100)
    seeds = [np.var(row, ddof=1) / len(row) for row in (a, b)]
    variance = sum(seeds) + of_rows(91.5, 500, 100)[0] + of_rows(81, 500, 100)[0]
    degrees = variance**2 / (seeds[0] ** 2 / 3 + seeds[1] ** 2 / 2)
    assert pair.p == pytest.approx(2 * stats.t.sf(10.5 / np.sqrt(variance), degrees))
    [rows_only] = share_pairs({"a": {0: 82.0, 1: 82.0}, "b": {0: 80.0, 1: 80.0}}, 500, 100)
    variance = of_rows(82, 500, 100)[0] + of_rows(80, 500, 100)[0]
    assert rows_only.p == pytest.approx(2 * stats.norm.sf(2 / np.sqrt(variance)))


@pytest.mark.parametrize("pairs", [share_pairs, all_pairs])
@pytest.mark.parametrize("unsteady", [0, 2, 4])
def test_rows_with_equal_means_seldom_differ_whatever_their_spread(unsteady, pairs):
    """Holm promises at most 5 of 100 tables; one variance for all rows gave up to a quarter."""
    rng, spread = np.random.default_rng(0), [20.0] * unsteady + [1.0] * (14 - unsteady)
    tables = [{str(row): dict(enumerate(rng.normal(50, s, 6))) for row, s in enumerate(spread)} for _ in range(100)]
    assert sum(any(pair.differs for pair in pairs(values, None)) for values in tables) < 10


def test_an_unsteady_row_is_no_answer_and_does_not_hide_what_steady_rows_show(tmp_path):
    recall = {**RECALL, "dba": [30.0, 50.0, 55.0], "linear": [96.9, 97.0, 97.1]}
    found = column_pairs(filled(tmp_path, recall), "recall")
    assert found.equals == ["softmax", "linear"]  # p is 0.23 for linear, 0.01 for dba
    differs = {(pair.a, pair.b) for pair in found.pairs if pair.differs}
    assert differs == {("softmax", "none"), ("linear", "none")}  # corrected, dba differs from no row


def test_a_table_names_only_columns_that_it_has(tmp_path):
    with pytest.raises(Exception, match="there is no column digit, which charts, needs, costs or reference names"):
        filled(tmp_path, text=TABLE.replace("digits: images", "digit: images"))
