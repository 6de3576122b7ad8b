"""How VQA v2 compares answers: normalisation, soft targets, and the official accuracy against ten annotators.

Source: Antol et al. 2015, https://arxiv.org/abs/1505.00468; GT-Vision-Lab/VQA (2021-03), vqaEval.py; OpenVQA (2021-09).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from subquad.utils.errors import UserError

Evaluator = Literal["official", "openvqa"]

ANNOTATORS = 10
ANSWER_TYPES = ("yes/no", "number", "other")

_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_DIGITS_WITH_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
_MOST_PERIODS = 32
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten"
_NUMBERS = {"none": "0"} | {word: str(i) for i, word in enumerate(_NUMBER_WORDS.split())}
_ARTICLES = frozenset(("a", "an", "the"))
_CONTRACTED = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""
# A spelling that lacks one apostrophe. Two entries of the published table map a word to itself, four begin with a
# capital, which no lower-cased word does, and one is the wrong way round.
CONTRACTIONS = {"somebody'd": "somebodyd"} | {
    word[: mark.start()] + word[mark.end() :]: word for word in _CONTRACTED.split() for mark in re.finditer("'", word)
}
"""Spellings of contractions that lack an apostrophe, and what they become."""

_SCORES = (0.0, 0.3, 0.6, 0.9, 1.0)


def soft_score(matches: int) -> float:
    """What an answer is worth that `matches` of the ten annotators gave: 0, 0.3, 0.6, 0.9, and 1 from four on.

    That is the official average over the ten ways to leave one annotator out of min(matches among the others / 3, 1).
    """
    return _SCORES[min(matches, len(_SCORES) - 1)]


def strip_punctuation(text: str) -> str:
    """Deletes a mark or replaces it by a space, then deletes periods that no digit follows.

    A mark is deleted everywhere where it stands beside a space anywhere, or where a comma stands between two digits
    anywhere. At most 32 periods are deleted: the published code passes a flag in the place of the count.
    """
    joined = _DIGITS_WITH_COMMA.search(text) is not None
    result = text
    for mark in _MARKS:
        beside_space = f"{mark} " in text or f" {mark}" in text
        result = result.replace(mark, "" if joined or beside_space else " ")
    return _PERIOD.sub("", result, count=_MOST_PERIODS)


@lru_cache(maxsize=1 << 18)  # millions of answers, few of them different
def normalise(answer: str) -> str:
    """The form in which answers are compared: no marks, lower case, digits for numbers up to ten, no articles.

    The training code deletes commas once more afterwards; none is left then.
    """
    words = [_NUMBERS.get(word, word) for word in strip_punctuation(answer).lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def references(answers: Sequence[str], evaluator: Evaluator = "official") -> tuple[Counter[str], bool]:
    """How often each form of an answer was given, and whether a prediction is normalised before it is looked up.

    "official" (2021) normalises both sides, but neither where all ten answers are equal: then a prediction must be
    spelt as they are. "openvqa" always normalises the prediction, and only strips punctuation from the annotators'
    answers, where they differ.
    """
    if evaluator == "openvqa":
        same = len(set(answers)) == 1
        return Counter(answers if same else map(strip_punctuation, answers)), True
    if evaluator != "official":
        raise UserError(f'There is no evaluator "{evaluator}" of VQA; choose official or openvqa.')
    trimmed = [trim(answer) for answer in answers]
    if len(set(trimmed)) == 1:
        return Counter(trimmed), False
    return Counter(map(normalise, trimmed)), True


def trim(answer: str) -> str:
    """Spaces for tabs and line ends, and none around."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def accuracy(prediction: str, answers: Sequence[str], evaluator: Evaluator = "official") -> float:
    """Score of one prediction against ten answers, from 0 to 1."""
    given, normalised = references(answers, evaluator)
    prediction = trim(prediction)
    return soft_score(given[normalise(prediction) if normalised else prediction])


def evaluate(
    answered: Iterable[tuple[str, Sequence[str], str]], evaluator: Evaluator = "official"
) -> Mapping[str, float]:
    """Mean score of (prediction, ten answers, answer type), times 100, rounded to two places as the server does.

    Keys: "overall", and the answer types that occur. Raises UserError where there is nothing to evaluate.
    """
    scores: dict[str, list[float]] = {}
    for prediction, answers, kind in answered:
        scores.setdefault(kind, []).append(accuracy(prediction, answers, evaluator))
    everything = [score for of_kind in scores.values() for score in of_kind]
    if not everything:
        raise UserError("There are no predictions to evaluate; give one for each question.")
    means = {kind: round(100 * sum(part) / len(part), 2) for kind, part in scores.items()}
    return {"overall": round(100 * sum(everything) / len(everything), 2)} | means
