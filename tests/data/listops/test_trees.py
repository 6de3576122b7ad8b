import itertools
import threading

import numpy as np
import pytest

from subquad.data.listops import trees
from subquad.data.listops.grammar import CLOSE, MAX, MED, MIN, SM, ZERO, evaluate
from subquad.data.listops.listops_release import write_synthetic
from subquad.data.listops.trees import generate
from subquad.data.parallel import in_order
from subquad.utils.errors import UserError

COUNT = 8000


@pytest.fixture(scope="module")
def sample():
    return generate(COUNT, seed=1)


def depths_and_counts(tokens):
    """The deepest level with a node, and the number of arguments of every operator."""
    counts, pending, deepest = [], [], 1
    for token in tokens:
        if token == CLOSE:
            counts.append(pending.pop())
            continue
        if pending:
            pending[-1] += 1
        deepest = max(deepest, len(pending) + 1)
        if token < CLOSE:
            pending.append(0)
    return deepest, counts


@pytest.mark.parametrize("limits", [{}, {"min_length": 20, "max_length": 200, "max_depth": 4}])
def test_generated_values_are_the_values_of_the_expressions(limits):
    sequences, _ = generate(400, seed=2, **limits)
    assert [evaluate(sequences[i]) for i in range(400)] == sequences.targets.tolist()
    assert sequences.values.dtype == np.uint8
    assert sequences.targets.dtype == np.int64


def test_limits_are_strict_and_reached():
    sequences, _ = generate(2000, min_length=20, max_length=30)
    assert set(sequences.lengths.tolist()) == set(range(21, 30))


@pytest.mark.parametrize("max_depth", [2, 3, 10])
def test_trees_reach_the_deepest_level_and_no_further(max_depth):
    limits = {} if max_depth == 10 else {"min_length": 3, "max_length": 300}
    sequences, _ = generate(100, max_depth=max_depth, **limits)
    shapes = [depths_and_counts(sequences[i]) for i in range(100)]
    assert max(deepest for deepest, _ in shapes) == max_depth
    counts = {count for _, counts in shapes for count in counts}
    assert counts == set(range(2, 11))


def test_shares_follow_the_published_distribution(sample):
    # Expected values of the benchmark's settings; each tolerance is four standard errors of a sample of this size.
    sequences, acceptance = sample
    lengths = sequences.lengths
    assert acceptance == pytest.approx(0.0830, abs=4 * (0.083 * 0.917 / (COUNT / 0.083)) ** 0.5)
    assert lengths.mean() == pytest.approx(1035.8, abs=4 * 393.9 / COUNT**0.5)
    assert lengths.std() == pytest.approx(393.9, abs=12)
    assert np.percentile(lengths, [10, 50, 90]) == pytest.approx([577, 953, 1643], abs=30)
    labels = np.bincount(sequences.targets, minlength=10) / COUNT
    assert labels == pytest.approx([0.169, 0.092, 0.076, 0.084, 0.088, 0.087, 0.077, 0.071, 0.087, 0.170], abs=0.0165)
    operators = np.bincount(sequences.values, minlength=16)[[MIN, MAX, MED, SM]]
    assert operators / operators.sum() == pytest.approx([0.25] * 4, abs=0.003)
    assert operators.sum() / COUNT == pytest.approx(147.3, abs=2.6)
    arguments = (len(sequences.values) - operators.sum() - COUNT) / operators.sum()
    assert arguments == pytest.approx(6.02, abs=0.02)
    digits = np.bincount(sequences.values, minlength=16)[ZERO:]
    assert digits / digits.sum() == pytest.approx([0.1] * 10, abs=0.002)


def test_root_operator_is_worth_what_is_published(sample):
    sequences, _ = sample
    roots = sequences.values[sequences.offsets[:-1]]
    assert np.bincount(roots, minlength=5)[[MIN, MAX, MED, SM]] / COUNT == pytest.approx([0.25] * 4, abs=0.02)
    best = {o: np.bincount(sequences.targets[roots == o], minlength=10) for o in (MIN, MAX, MED, SM)}
    assert sum(counts.max() for counts in best.values()) / COUNT == pytest.approx(0.362, abs=0.022)
    assert best[MIN][0] / best[MIN].sum() == pytest.approx(0.565, abs=0.045)
    assert best[MAX][9] / best[MAX].sum() == pytest.approx(0.569, abs=0.045)
    assert best[MED][4] / best[MED].sum() == pytest.approx(0.212, abs=0.037)


def test_smallest_expressions_are_all_found_at_the_exact_rate():
    # Four tokens: a root operator (1/4) of two arguments (1/9), both digits (3/4 each); 4 * 10 * 10 of them.
    sequences, acceptance = generate(400, min_length=3, max_length=5)
    assert len({sequences[i].tobytes() for i in range(400)}) == 400
    rate = 1 / 4 * 1 / 9 * 9 / 16
    chunks = 10  # fewer would mean 400 distinct ones among 640 drawn
    assert acceptance == pytest.approx(rate, abs=4 * (rate / (chunks * trees.CHUNK)) ** 0.5)


@pytest.mark.parametrize(
    ("count", "limits", "found"),
    [(401, {"min_length": 3, "max_length": 5}, 400), (1, {"min_length": 1, "max_length": 4}, 0)],
)
def test_more_expressions_than_exist_are_refused(monkeypatch, count, limits, found):
    monkeypatch.setattr(trees, "CHUNK", 1024)
    with pytest.raises(UserError, match=f"{count} ListOps expressions are wanted, but only {found} different"):
        generate(count, **limits)


def test_no_expression_occurs_twice_and_order_says_nothing():
    sequences, _ = generate(2000, min_length=3, max_length=8)
    assert len({sequences[i].tobytes() for i in range(2000)}) == 2000
    first, second = sequences.lengths[:1000], sequences.lengths[1000:]
    assert first.mean() == pytest.approx(second.mean(), abs=4 * first.std() * (2 / 1000) ** 0.5)


def test_any_number_of_workers_gives_the_same_bytes():
    (one, rate), others = generate(1500, seed=3, workers=1), [generate(1500, seed=3, workers=w) for w in (2, 5)]
    for other, other_rate in others:
        assert np.array_equal(one.values, other.values)
        assert np.array_equal(one.offsets, other.offsets)
        assert np.array_equal(one.targets, other.targets)
        assert rate == other_rate


def test_another_seed_gives_other_expressions():
    one, _ = generate(300, seed=0)
    other, _ = generate(300, seed=1)
    assert not {one[i].tobytes() for i in range(300)} & {other[i].tobytes() for i in range(300)}


def test_chunks_of_one_seed_differ():
    limits = {"seed": 0, "min_length": 500, "max_length": 2000, "max_depth": 10}
    first, second = (trees.draw_chunk(chunk, **limits) for chunk in (0, 1))
    assert not {first[i].tobytes() for i in range(len(first))} & {second[i].tobytes() for i in range(len(second))}


def test_work_is_returned_in_order_and_stops_when_closed():
    started = []
    release = threading.Event()

    def work(item):
        started.append(item)
        if item == 0:
            release.wait(5)
        else:
            release.set()
        return item

    results = in_order(work, itertools.count(), workers=2)
    assert list(itertools.islice(results, 20)) == list(range(20))
    results.close()
    assert len(started) <= 20 + 4
    assert list(in_order(str, range(3), workers=8)) == ["0", "1", "2"]


def test_nothing_is_drawn_when_stderr_is_no_terminal(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich assume a terminal
    write_synthetic(tmp_path)
    assert capsys.readouterr() == ("", "")
