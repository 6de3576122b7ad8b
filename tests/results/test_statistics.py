"""Mean, spread and intervals over seeds, against textbook values."""

import math
import statistics

import pytest
from scipy import stats

from subquad.results.statistics import Summary, across, compare, summarise


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


def test_the_p_value_is_that_of_the_paired_t_test():
    a, b = {0: 1.0, 1: 2.0, 2: 3.5, 3: 4.0}, {0: 0.5, 1: 2.5, 2: 2.0, 3: 3.0}
    compared = compare(a, b)
    assert compared is not None
    assert compared.p == pytest.approx(stats.ttest_rel([*a.values()], [*b.values()]).pvalue)
    same = compare({0: 97.5, 1: 95.0, 2: 100.0}, {0: 95.0, 1: 92.5 + 4e-6, 2: 97.5})  # the same lead each time
    assert same is not None
    assert (same.p, same.beats) == (0.25, False)
    many = compare(dict.fromkeys(range(6), 2.0), dict.fromkeys(range(6), 1.0))
    assert many is not None
    assert (many.p, many.beats, many.loses) == (2**-5, True, False)
    assert compare({0: 2.0, 1: 3.0}, {0: 2.0, 1: 3.0}).p == 1.0  # type: ignore[union-attr]


def test_six_of_six_is_the_least_that_ranks_can_show():
    """All of n differences on one side: two of the 2^n patterns of signs are as one-sided, p = 2 / 2^n."""
    six = across([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert six is not None
    assert six.p == pytest.approx(2 / 64)
    assert six.ranks == 21
    assert (six.beats, six.loses, six.better, six.equal, six.settings) == (True, False, 6, 0, 6)
    assert six.difference == pytest.approx(0.35)
    half = 2.5706 * statistics.stdev([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) / math.sqrt(6)
    assert six.high == pytest.approx(0.35 + half, rel=1e-4)
    assert six.low == pytest.approx(0.35 - half, rel=1e-4)
    five = across([-0.1, -0.2, -0.3, -0.4, -0.5])
    assert five is not None
    assert five.p == pytest.approx(2 / 32)
    assert not five.loses


def test_ranks_and_not_counts_decide():
    """Six small leads and one large loss: W- = 7 of 28; 28 of 128 patterns of signs are as far from the middle."""
    found = across([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -70.0])
    assert found is not None
    assert (found.better, found.ranks) == (6, 14)
    assert found.p == pytest.approx(stats.wilcoxon([1, 2, 3, 4, 5, 6, -7]).pvalue)
    assert not found.beats
    turned = across([-difference for difference in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)])
    assert turned is not None
    assert turned.loses
    assert not turned.beats


def test_equal_settings_are_left_out_of_the_test_and_counted():
    found = across([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0, 1e-13])
    assert found is not None
    assert (found.p, found.equal, found.settings, found.better) == (pytest.approx(2 / 64), 2, 8, 6)
    all_equal = across([0.0, 0.0])
    assert all_equal is not None
    assert (all_equal.p, all_equal.beats, all_equal.loses) == (1.0, False, False)
    single = across([0.5])
    assert single is not None
    assert (single.low, single.high, single.p) == (None, None, 1.0)
    assert across([]) is None
