import numpy as np
import pytest
import torch

from subquad.data.hidden_answers import MASK
from subquad.data.recall.copying import BLANK, Copying
from subquad.specs import UNMASKED
from subquad.utils.errors import UserError

SMALL = {"length": 12, "tokens": 4, "vocab": 5, "sizes": (60, 20, 30), "batch_size": 8, "seed": 0}


def make(**changes):
    return Copying(**SMALL | changes)


def test_the_answers_are_the_tokens_in_their_order():
    data = make()
    places = set()
    for split in data.splits.values():
        for row in map(split.__getitem__, range(len(split))):
            assert row[:12][row[:12] != BLANK].tolist() == row[12:].tolist()
            assert ((row[12:] > BLANK) & (row[12:] < data.spec.vocab)).all()
            places |= {*np.flatnonzero(row[:12] != BLANK)}
    assert places == {*range(12)}
    assert [len(split) for split in data.splits.values()] == [60, 20, 30]


def test_only_the_answers_are_hidden_and_predicted():
    data = make()
    batch = data.batched("train").__getitems__([3, 0])
    assert (batch.target != UNMASKED).tolist() == [[False] * 12 + [True] * 4] * 2
    assert (batch.inputs[:, 12:] == MASK).all()
    assert torch.equal(batch.target[0, 12:], torch.from_numpy(data.splits["train"][3][12:]).long())


def test_baselines_look_at_no_order():
    assert make().baselines()["any token"] == 0.2
    assert make(vocab=500, sizes=(60, 20, 300)).baselines()["most frequent token of the row"] == pytest.approx(
        0.25, abs=0.01
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"tokens": 13}, r"data\.tokens"), ({"vocab": 1}, r"data\.vocab"), ({"length": 1, "tokens": 1}, r"data\.sizes")],
)
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        _ = make(**changes).splits
