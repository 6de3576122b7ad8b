"""Mean, spread and intervals over seeds, against textbook values."""

import math
import statistics

import pytest
from scipy import stats

from subquad.tables.statistics import Summary, compare, summarise


def test_one_seed_has_no_spread():
    assert summarise({3: 0.5}) == Summary(0.5, None, None, 1)


def test_the_interval_is_students():
    """Five values: the quantile with 4 degrees of freedom is 2.776 in every table."""
    values = dict(enumerate([38.1, 38.5, 37.7, 38.0, 38.2]))
    summary = summarise(values)
    assert summary.mean == pytest.approx(38.1)
    assert summary.std == pytest.approx(statistics.stdev(values.values()))
    assert summary.half_width == pytest.approx(2.7764 * summary.std / math.sqrt(5), rel=1e-4)
    assert summary.seeds == 5


def test_the_interval_is_that_of_scipy():
    numbers = [0.71, 0.74, 0.69]
    low, high = stats.t.interval(0.95, 2, loc=statistics.fmean(numbers), scale=stats.sem(numbers))
    assert summarise(dict(enumerate(numbers))).half_width == pytest.approx((high - low) / 2)


def test_a_comparison_pairs_seeds():
    """What a seed does to both cancels, here shifts of 10 beside a difference of 1."""
    a, b = {0: 11.0, 1: 21.1, 2: 30.9}, {2: 30.0, 1: 20.0, 0: 10.0}
    compared = compare(a, b)
    assert compared is not None
    assert compared.difference == pytest.approx(1.0)
    assert compared.high - compared.difference == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert compared.difference - compared.low == pytest.approx(compared.high - compared.difference)
    assert compared.beats
    assert not compared.loses
    turned = compare(b, a)
    assert turned is not None
    assert turned.loses
    assert not turned.beats


def test_only_seeds_of_both_count():
    assert compare({0: 1.0, 1: 2.0, 5: 99.0}, {0: 0.0, 1: 0.5, 7: -99.0}).seeds == 2  # type: ignore[union-attr]
    assert compare({0: 1.0, 1: 2.0}, {1: 0.5, 2: 3.0}) is None


def test_noise_neither_beats_nor_loses():
    a, b = {0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 2.5, 2: 2.0}
    for compared, difference in ((compare(a, b), 0.5), (compare(b, a), -0.5)):
        assert compared is not None
        assert compared.difference == pytest.approx(difference)
        assert not compared.beats
        assert not compared.loses
