"""What is said of a measured number beside a printed one."""

import pytest

from subquad.results.published_value import Printed
from subquad.results.statistics import Summary, summarise
from subquad.results.verdict import Verdict, judge


def printed(text: str) -> Printed:
    found = Printed.parse(text)
    assert found is not None
    return found


def exactly(mean: float) -> Summary:
    """A quantity that is counted."""
    return summarise({0: mean})


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (38.10, Verdict.REPRODUCED),
        (38.50, Verdict.REPRODUCED),
        (37.70, Verdict.REPRODUCED),
        (38.60, Verdict.NOISE),
        (38.90, Verdict.NOISE),
        (38.95, Verdict.BETTER),
        (37.25, Verdict.WORSE),
    ],
)
def test_a_printed_spread_counts_once_for_reproduced_and_twice_for_noise(mean, verdict):
    assert judge(Summary(mean, 0.0, 0.0, 5), printed("38.10±0.40"), 5, "higher") is verdict


def test_the_interval_of_the_measured_mean_adds_to_that_of_the_printed():
    assert judge(Summary(39.80, 0.7, 0.9, 5), printed("38.10±0.40"), 5, "higher") is Verdict.NOISE
    assert judge(Summary(39.81, 0.7, 0.9, 5), printed("38.10±0.40"), 5, "higher") is Verdict.BETTER


@pytest.mark.parametrize(("text", "mean"), [("54.56", 54.565), ("54.56", 54.555), ("44M", 44.138496), ("0.4", 0.45)])
def test_without_a_spread_a_number_within_rounding_is_reproduced(text, mean):
    assert judge(exactly(mean), printed(text), 0, "equal") is Verdict.REPRODUCED


def test_a_digit_off_is_not_reproduced():
    """The energy of PVTv2-B3 that EcoFormer misprints."""
    assert judge(exactly(54.527), printed("54.56"), 0, "equal") is Verdict.LESS
    assert judge(exactly(54.60), printed("54.56"), 0, "equal") is Verdict.MORE


def test_the_direction_of_the_metric_says_which_side_is_better():
    assert judge(exactly(0.5), printed("0.90"), 1, "lower") is Verdict.BETTER
    assert judge(exactly(1.5), printed("0.90"), 1, "lower") is Verdict.WORSE
    assert judge(exactly(0.5), printed("0.90"), 1, "higher") is Verdict.WORSE


def test_fewer_seeds_than_the_table_has_are_too_few():
    assert judge(Summary(38.10, 0.1, 0.2, 4), printed("38.10±0.40"), 5, "higher") is Verdict.INCOMPLETE
    assert judge(Summary(38.10, 0.1, 0.2, 6), printed("38.10±0.40"), 5, "higher") is Verdict.REPRODUCED


def test_words_are_not_judged():
    with pytest.raises(ValueError, match="is no number to compare with"):
        judge(exactly(1.0), printed("O(n)"), 0, "equal")
