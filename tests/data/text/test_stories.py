import numpy as np
import pytest
import torch

from subquad.data.hidden_answers import MASK
from subquad.data.text.stories import PEOPLE, PLACES, THINGS, WORDS, Stories
from subquad.specs import UNMASKED
from subquad.utils.errors import UserError

SMALL = {"sentences": (1, 9), "sizes": (300, 60, 90), "batch_size": 8, "seed": 0}


def make(**changes):
    return Stories(**SMALL | changes)


def sentences(row):
    text = " ".join(WORDS[token] for token in row)
    assert text.endswith(" .")
    return [sentence.split() for sentence in text[:-2].split(" . ")]


def read(row):
    """Number of sentences of the story, and where everybody and everything is, according to a plain reading of it."""
    where, told = {}, 0
    for name, verb, *rest in (s for s in sentences(row) if "is" not in s):
        told += 1
        if verb == "went":
            assert rest[:2] == ["to", "the"]
            where[name] = rest[2]
        else:
            assert (verb, rest[0], rest[1] in THINGS) == (verb, "the", True)
            if verb == "took":
                assert where.get(rest[1]) not in PEOPLE  # nobody takes what another person holds
                assert where.get(rest[1]) in (None, where.get(name))  # and what was dropped only where it lies
                where[rest[1]] = name
            else:
                assert (verb, where[rest[1]]) == ("dropped", name)
                where[rest[1]] = where[name]
    return told, {name: where.get(place, place) for name, place in where.items() if where.get(place, place) in PLACES}


def test_the_answers_are_those_of_a_plain_reading_of_the_story():
    data, told = make(), set()
    for split in data.splits.values():
        for row in map(split.__getitem__, range(len(split))):
            count, where = read(row)
            told.add(count)
            answers = {s[-5]: s[-1] for s in sentences(row) if "is" in s}
            assert answers == where
            assert len(row) <= data.spec.max_len
    assert told == set(range(1, 10))
    longest = [("mary went to the park .", 9), ("mary is in the park .", 8), ("the milk is in the park .", 3)]
    assert data.spec.max_len == sum(count * len(text.split()) for text, count in longest)


def test_only_the_answers_are_hidden_and_predicted():
    data = make()
    rows = data.splits["train"]
    batch = data.batched("train").__getitems__([0, 1, 2])
    hidden = batch.target != UNMASKED
    assert (batch.inputs[hidden] == MASK).all()
    whole = torch.where(hidden, batch.target, batch.inputs)
    for i in range(3):
        row = rows[i]
        assert whole[i].tolist() == [*row, *[0] * (whole.shape[1] - len(row))]
        shown = [WORDS[token] for token in batch.inputs[i]]
        count = sum("is" in s for s in sentences(row))
        assert (shown.count("?"), hidden[i].sum()) == (count, count)
        assert all(shown[at - 2 : at] == ["in", "the"] for at in hidden[i].nonzero().flatten())


def test_rows_depend_on_the_seed_of_the_data_alone_and_none_occurs_twice():
    one, same, other = make(), make(seed=1), make(data_seed=1)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    rows = [split[i].tobytes() for split in one.splits.values() for i in range(len(split))]
    assert len(set(rows)) == len(rows) == 450
    assert {name: len(split) for name, split in one.splits.items()} == {"train": 300, "val": 60, "test": 90}


def test_the_baselines_take_a_place_from_the_story():
    data = make()
    often, first = [], []
    for row in map(data.splits["test"].__getitem__, range(90)):
        words = [WORDS[token] for token in row]
        asked = [s for s in sentences(row) if "is" in s]
        story = [s[-1] for s in sentences(row) if "to" in s]
        for sentence in asked:
            later = words[words.index(sentence[-5]) :]
            first.append(next(word for word in later if word in PLACES) == sentence[-1])
            often.append(max(PLACES, key=story.count) == sentence[-1])
    assert data.baselines() == {
        "any place": 1 / 8,
        "place named most often": pytest.approx(np.mean(often)),
        "place where first seen": pytest.approx(np.mean(first)),
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sentences": (3, 2)}, r"data\.sentences"), ({"sentences": (0, 2)}, r"data\.sentences"),
        ({"sentences": (2,)}, r"data\.sentences"), ({"sizes": (8, 8)}, r"data\.sizes"),
        ({"sizes": (8, 8, 0)}, r"data\.sizes"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        make(**changes)


def test_more_stories_than_there_are_are_refused():
    with pytest.raises(UserError, match=r"fewer than 100 different rows"):
        _ = make(sentences=(1, 1), sizes=(60, 20, 20)).splits
