"""Scores of VQA v2: normalisation of answers, soft targets, and the official accuracy against ten annotators.

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
# Each spelling lacks one apostrophe. The published table also has two entries that map a word to itself and four with a
# capital, which no lower-cased word has; one of its entries maps in the wrong direction.
CONTRACTIONS = {"somebody'd": "somebodyd"} | {
    word[: mark.start()] + word[mark.end() :]: word for word in _CONTRACTED.split() for mark in re.finditer("'", word)
}
"""Maps spellings of contractions that lack an apostrophe to the complete ones."""

_SCORES = (0.0, 0.3, 0.6, 0.9, 1.0)


def soft_score(matches: int) -> float:
    """The score of an answer that `matches` of the ten annotators gave: 0, 0.3, 0.6, 0.9, and 1 for four or more.

    This equals the official score: the average of min(matches among the others / 3, 1) over the ten ways to leave out
    one annotator.
    """
    return _SCORES[min(matches, len(_SCORES) - 1)]


def strip_punctuation(text: str) -> str:
    """Deletes punctuation marks or replaces them by spaces, then deletes periods that no digit follows.

    All occurrences of a mark are deleted if one of them is next to a space, or if the text has a comma between two
    digits; otherwise they are replaced by spaces. At most 32 periods are deleted, because the published code passes a
    flag as the count.
    """
    joined = _DIGITS_WITH_COMMA.search(text) is not None
    result = text
    for mark in _MARKS:
        beside_space = f"{mark} " in text or f" {mark}" in text
        result = result.replace(mark, "" if joined or beside_space else " ")
    return _PERIOD.sub("", result, count=_MOST_PERIODS)


@lru_cache(maxsize=1 << 18)  # of millions of answers, few are distinct
def normalise(answer: str) -> str:
    """The form in which answers are compared: no punctuation, lower case, digits for numbers up to ten, no articles.

    The published training code deletes commas once more afterwards, which has no effect.
    """
    words = [_NUMBERS.get(word, word) for word in strip_punctuation(answer).lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def references(answers: Sequence[str], evaluator: Evaluator = "official") -> tuple[Counter[str], bool]:
    """The number of annotators for each form of an answer, and whether a prediction must be normalised to compare.

    "official" (2021) normalises both sides, or neither if all ten answers are equal: a prediction must then have the
    same spelling. "openvqa" always normalises the prediction, but only strips punctuation from the annotators' answers,
    and only if they differ.
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
    """Replaces tabs and line ends by spaces and strips surrounding ones."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def accuracy(prediction: str, answers: Sequence[str], evaluator: Evaluator = "official") -> float:
    """The score of one prediction against ten answers, from 0 to 1."""
    counts, normalised = references(answers, evaluator)
    prediction = trim(prediction)
    return soft_score(counts[normalise(prediction) if normalised else prediction])


def evaluate(
    answered: Iterable[tuple[str, Sequence[str], str]], evaluator: Evaluator = "official"
) -> Mapping[str, float]:
    """The mean score of (prediction, ten answers, answer type), times 100, rounded to two decimals as on the server.

    Keys: "overall", and the answer types that occur. Raises UserError without predictions.
    """
    scores: dict[str, list[float]] = {}
    for prediction, answers, kind in answered:
        scores.setdefault(kind, []).append(accuracy(prediction, answers, evaluator))
    everything = [score for of_kind in scores.values() for score in of_kind]
    if not everything:
        raise UserError("There are no predictions to evaluate; give one for each question.")
    means = {kind: round(100 * sum(of_kind) / len(of_kind), 2) for kind, of_kind in scores.items()}
    return {"overall": round(100 * sum(everything) / len(everything), 2)} | means
