import numpy as np
import pytest
import torch

from subquad.data.recall.compression import LAST, Compression
from subquad.specs import UNMASKED
from subquad.utils.errors import UserError

SMALL = {"length": 6, "vocab": 5, "sizes": (60, 20, 30), "batch_size": 8, "seed": 0}


def make(**changes):
    return Compression(**SMALL | changes)


def test_a_row_is_seen_whole_and_all_but_its_last_token_are_asked_for():
    data = make()
    batch = data.batched("train").__getitems__([3, 0])
    assert torch.equal(batch.inputs[0], torch.from_numpy(data.splits["train"][3]).long())
    assert (batch.inputs[:, -1] == LAST).all()
    assert ((batch.inputs[:, :-1] > LAST) & (batch.inputs < data.spec.vocab)[:, :-1]).all()
    assert torch.equal(batch.target[:, :-1], batch.inputs[:, :-1])
    assert (batch.target[:, -1] == UNMASKED).all()
    assert [len(split) for split in data.splits.values()] == [60, 20, 30]


def test_baselines_read_no_place():
    data = make()
    assert data.baselines()["any token"] == 0.2
    rows = [data.splits["test"][i][:-1] for i in range(30)]
    most = np.mean([max((row == token).mean() for token in row) for row in rows])
    assert data.baselines()["most frequent token of the row"] == pytest.approx(most)


@pytest.mark.parametrize(
    ("changes", "named"), [({"vocab": 1}, r"data\.vocab"), ({"length": 1, "vocab": 5}, r"data\.sizes")]
)
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        _ = make(**changes).splits
