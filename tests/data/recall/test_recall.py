import numpy as np
import pytest
import torch

from subquad.data.hidden_answers import MASK
from subquad.data.recall.recall import FIRST_KEY, Recall
from subquad.specs import UNMASKED
from subquad.utils.errors import UserError

SMALL = {"pairs": 4, "keys": 9, "values": 5, "sizes": (60, 20, 30), "batch_size": 8, "seed": 0}


def make(**changes):
    return Recall(**SMALL | changes)


def test_every_answer_is_the_value_that_was_shown_behind_its_key():
    data = make(train_pairs=[2, 4])
    pairs = {
        name: [len(row) // 4 for row in map(split.__getitem__, range(len(split)))]
        for name, split in data.splits.items()
    }
    assert pairs == {"train": [2] * 30 + [4] * 30, "val": [4] * 20, "test": [4] * 30}
    for split in data.splits.values():
        for row in map(split.__getitem__, range(len(split))):
            shown, asked = row.reshape(2, -1, 2)
            assert dict(shown.tolist()) == dict(asked.tolist())
            assert len(set(shown[:, 0])) == len(shown)
            assert (shown[:, 0] >= FIRST_KEY).all()
            assert (shown[:, 0] < FIRST_KEY + 9).all()
            assert (shown[:, 1] >= FIRST_KEY + 9).all()
            assert (shown[:, 1] < data.spec.vocab).all()
    assert {tuple(np.argsort(row[8::2])) for row in map(data.splits["test"].__getitem__, range(30))} > {(0, 1, 2, 3)}


def test_only_the_answers_are_hidden_and_predicted():
    data = make(train_pairs=[2, 4])
    rows = data.splits["train"]
    batch = data.batched("train").__getitems__([59, 0])
    hidden = batch.target != UNMASKED
    assert hidden[0].nonzero().flatten().tolist() == [9, 11, 13, 15]
    assert hidden[1].nonzero().flatten().tolist() == [5, 7]
    assert (batch.inputs[hidden] == MASK).all()
    whole = torch.where(hidden, batch.target, batch.inputs)
    assert whole[0].tolist() == rows[59].tolist()
    assert whole[1].tolist() == [*rows[0].tolist(), *[0] * 8]
    assert batch.valid is not None
    assert batch.valid.sum(1).tolist() == [16, 8]


def test_rows_depend_on_the_seed_of_the_data_alone_and_splits_share_none():
    one, same, other = make(), make(seed=1), make(data_seed=1)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    rows = {name: {split[i].tobytes() for i in range(len(split))} for name, split in one.splits.items()}
    assert len(set.union(*rows.values())) == sum(map(len, rows.values()))
    assert len(rows["val"]) + len(rows["test"]) == 50


def test_baselines_are_those_of_values_picked_without_keys():
    data = make(sizes=(60, 20, 2000))
    scores = data.baselines()
    test = data.splits["test"]
    most = [max(np.bincount(test[i][1:8:2])) / 4 for i in range(2000)]
    assert scores == {"any value": 0.2, "most frequent value of the row": pytest.approx(np.mean(most))}


def test_shorter_test_rows_leave_the_model_and_the_other_splits_as_they_are():
    whole, short = make(), make(test_pairs=2)
    assert short.spec == whole.spec
    assert short.fingerprint == whole.fingerprint  # required by evaluate=
    assert short.splits["test"].lengths.tolist() == [8] * 30
    for name in ("train", "val"):
        assert (short.splits[name].values == whole.splits[name].values).all()
    assert short.baselines().keys() == whole.baselines().keys()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pairs": 10}, "data.pairs"), ({"train_pairs": [5]}, "data.train_pairs"),
        ({"train_pairs": []}, "data.train"),
        ({"test_pairs": 5}, "data.test_pairs"), ({"values": 1}, "data.values"),
        ({"sizes": (8, 8)}, "data.sizes"), ({"sizes": (8, 8, 0)}, "data.sizes"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        make(**changes)


def test_splits_that_would_share_rows_are_refused():
    with pytest.raises(UserError, match=r"are the same; raise data\.pairs"):
        _ = make(pairs=1, keys=2, values=2).splits
