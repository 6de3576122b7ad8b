"""Stories of people who walk about and carry things, and where each of them is in the end; generated.

    mary went to the kitchen . john took the milk . john went to the park . mary is in the ? .
    the milk is in the ? .

The answers, here "kitchen" and "park", are hidden from the model. A person is at the place last gone to; a thing is
with whoever took it last, or where it was dropped. So two or more sentences hold an answer, and only their order tells
which of the earlier ones still count.

Source: Weston et al. 2015, "Towards AI-Complete Question Answering", https://arxiv.org/abs/1502.05698, tasks 1 and 2
(one and two supporting facts). There a story has one question; here all are asked at once, as in `Recall`, and the
distribution is our own.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from subquad.data.hidden_answers import GeneratedRows, different
from subquad.data.ragged import Ragged
from subquad.specs import TextSpec
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Count

PEOPLE = ("bill", "daniel", "fred", "jeff", "john", "julie", "mary", "sandra")
PLACES = ("bathroom", "bedroom", "cinema", "garden", "hallway", "kitchen", "office", "park")
THINGS = ("apple", "football", "milk")
WORDS = ("", "?", ".", "dropped", "in", "is", "the", "to", "took", "went", *PEOPLE, *PLACES, *THINGS)
"""The word of each token id; 0 is padding, 1 stands in place of an answer."""
_ID = {word: token for token, word in enumerate(WORDS)}
_PLACE_IDS = np.array([_ID[place] for place in PLACES])
_LONGEST_SENTENCE = 6  # mary went to the kitchen .
_LONGEST_ANSWERS = 6 * len(PEOPLE) + 7 * len(THINGS)  # mary is in the kitchen . the milk is in the park .


class Stories(GeneratedRows):
    """Stories of `sentences[0]` to `sentences[1]` sentences, then a sentence for everybody and everything seen.

    Raises UserError for impossible settings.

    Args:
        sentences: fewest and most sentences of a story.
    """

    def __init__(self, *, sentences: Sequence[Count], **generated: Any) -> None:
        super().__init__(**generated)
        if len(sentences) != 2 or not 1 <= sentences[0] <= sentences[1]:
            raise UserError(f"data.sentences={list(sentences)} must be the fewest and the most sentences of a story.")
        self.fewest, self.most = sentences

    @property
    def spec(self) -> TextSpec:
        longest = self.most * _LONGEST_SENTENCE + _LONGEST_ANSWERS
        return TextSpec(max_len=longest, vocab=len(WORDS), tokenizer="0")

    def load(self) -> tuple[Mapping[str, Ragged], str]:
        """Generates the stories; raises UserError if there are not enough different ones."""
        rng = np.random.default_rng(self.data_seed)
        stories = (_story(int(rng.integers(self.fewest, self.most + 1)), rng) for _ in itertools.count())
        return different((np.array([_ID[word] for word in words], np.uint8) for words in stories), self.sizes)

    def answers(self, row: np.ndarray) -> np.ndarray:
        """True at the words after "in the"."""
        return _at_answers(row)

    def baselines(self) -> dict[str, float]:
        """Accuracy of any place, of the place most often named in the story, and of that where somebody was first seen.

        The second one is what there is to gain from the places of a story without knowing who is where.
        """
        test = self.splits["test"]
        guesses = [guess for i in range(len(test)) for guess in _guesses(test[i])]
        often, first, right = np.array(guesses).T
        return {
            "any place": 1 / len(PLACES), "place named most often": float(np.mean(often == right)),
            "place where first seen": float(np.mean(first == right)),
        }  # fmt: skip


def _at_answers(row: np.ndarray) -> np.ndarray:
    return np.concatenate([[False, False], row[:-2] == _ID["in"]])


def _guesses(row: np.ndarray) -> list[tuple[int, int, int]]:
    """For each answer the place named most often in the story, the first one after the name asked for, and the answer.

    Of places named equally often, the first of PLACES.
    """
    at = np.flatnonzero(_at_answers(row))
    named = [int(np.flatnonzero(row == row[i - 4])[0]) for i in at]  # the name is four words before its answer
    places = np.flatnonzero(np.isin(row, _PLACE_IDS))
    often = int(np.bincount(row[places[: -len(at)]]).argmax()) if len(at) else 0
    return [(often, int(row[places[places > start][0]]), int(row[i])) for start, i in zip(named, at, strict=True)]


def _story(sentences: int, rng: np.random.Generator) -> list[str]:
    """The words of a story and of its answers."""
    place: dict[str, str] = {}  # of people and of dropped things
    holder: dict[str, str] = {}  # of things that somebody carries
    words: list[str] = []
    for _ in range(sentences):
        person = PEOPLE[rng.integers(len(PEOPLE))]
        carried = [thing for thing, who in holder.items() if who == person]
        # A thing that was not named yet may lie anywhere; a dropped one is where it was dropped.
        near = [t for t in THINGS if t not in holder and (t not in place or place[t] == place.get(person))]
        action = rng.integers(4)
        if action == 0 and carried and person in place:
            thing = carried[rng.integers(len(carried))]
            del holder[thing]
            place[thing] = place[person]
            words += [person, "dropped", "the", thing, "."]
        elif action == 1 and near:
            thing = near[rng.integers(len(near))]
            holder[thing] = person
            place.pop(thing, None)
            words += [person, "took", "the", thing, "."]
        else:
            elsewhere = [other for other in PLACES if other != place.get(person)]
            place[person] = elsewhere[rng.integers(len(elsewhere))]
            words += [person, "went", "to", "the", place[person], "."]
    places = place | {thing: place[who] for thing, who in holder.items() if who in place}
    for name in rng.permutation(sorted(places)):
        words += [*(["the"] if name in THINGS else []), name, "is", "in", "the", places[name], "."]
    return words
