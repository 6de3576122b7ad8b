"""Normalisation and scores of answers; expected forms follow from the published rules, not from running the code."""

from fractions import Fraction

import pytest

from subquad.data.vqa.scoring import CONTRACTIONS, accuracy, evaluate, normalise, soft_score, strip_punctuation
from subquad.utils.errors import UserError

FORMS = [
    ("yes", "yes"),
    ("YES", "yes"),
    ("Yes.", "yes"),  # no digit follows the period
    ("two", "2"),
    ("TWO dogs", "2 dogs"),  # numbers are looked up in lower case
    ("none", "0"),
    ("zero", "0"),
    ("ten", "10"),
    ("eleven", "eleven"),  # the table ends at ten
    ("twenty-one", "twenty 1"),
    ("a dog", "dog"),
    ("The cat and an owl", "cat and owl"),
    ("a", ""),
    ("ate", "ate"),
    ("dont", "don't"),
    ("don't", "don't"),  # an apostrophe is not a mark
    ("whos there", "who's there"),
    ("5 oclock", "5 o'clock"),
    ("twas", "'twas"),
    ("couldnt've", "couldn't've"),
    ("couldn'tve", "couldn't've"),
    ("y'alld've", "y'all'd've"),
    ("ow's'at", "'ow's'at"),
    ("somebody'd", "somebodyd"),  # the table's misprint
    ("somebodyd", "somebodyd"),
    ("lets", "lets"),  # "let's" maps to itself, "lets" to nothing
    ("shes", "shes"),
    ("im", "im"),  # the table has "Im", which no lower-cased word equals
    ("black/white", "black white"),
    ("black / white", "black white"),  # deleted beside a space; two spaces become one
    ("t-shirt", "t shirt"),
    ("t -shirt", "t shirt"),
    ("semi-truck - red", "semitruck red"),  # one mark beside a space deletes all of its kind
    ("x-y-/z", "x y z"),  # only spaces of the input count, not those that "/" leaves
    ("x-y/-z", "x y z"),
    ("red, white", "red white"),
    ("red,white", "red white"),
    ("one,two", "1 2"),
    ("a,b", "b"),  # "a b", without the article
    ("1,000", "1000"),
    ("1,000/day-off", "1000dayoff"),  # a comma between digits deletes every mark
    ("10,20-30", "102030"),
    ("9-5, mon", "9 5 mon"),  # no digit behind the comma: "-" becomes a space
    ("3.5", "3.5"),
    (".5", ".5"),
    ("5.", "5"),
    ("3.5.", "3.5"),
    ("1. 2", "1 2"),
    ("v.2", "v.2"),  # the character before a period does not matter
    ("mr. smith", "mr smith"),
    ("u.s.a", "usa"),
    ("5 a.m.", "5 am"),
    ("a.", ""),  # "a" once the period is gone
    ("." * 40, "." * 8),  # at most 32 deletions
    ("11:30", "11:30"),  # no colon among the marks
    ("50%", "50%"),
    ("$5", "$5"),
    ("rock & roll", "rock & roll"),
    ("what's up?", "what's up"),
    ("(red)", "red"),
    ("red (dark)", "red dark"),  # " (" deletes the first, ")" becomes a space
    ("c++", "c"),
    ("me@home", "me home"),
    ("back\\slash", "back slash"),
    ("two_three", "2 3"),
    ("hello\tworld\n", "hello world"),
    ("-", ""),
    ("", ""),
]


@pytest.mark.parametrize(("answer", "expected"), FORMS)
def test_normal_forms(answer, expected):
    assert normalise(answer) == expected


@pytest.mark.parametrize("answer", [answer for answer, _ in FORMS])
def test_normal_forms_stay_as_they_are(answer):
    """No comma is left either; the published training code deletes commas once more."""
    form = normalise(answer)
    assert "," not in form
    assert normalise(form) == form or answer == "." * 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one-two", "one two"),
        ("one - two", "one  two"),
        ("Two.", "Two"),
        ("1,000", "1000"),
        ("?", " "),
        ("a? b", "a b"),
    ],
)
def test_punctuation_alone(text, expected):
    assert strip_punctuation(text) == expected


def test_contractions_lack_one_apostrophe_each():
    assert len(CONTRACTIONS) == 114
    repaired = {word: full for word, full in CONTRACTIONS.items() if word != "somebody'd"}
    for word, full in repaired.items():
        assert len(full) == len(word) + 1
        assert full.replace("'", "") == word.replace("'", "")


def left_out(matches):
    """The official score: the mean over the ten annotators of min(matches among the other nine / 3, 1)."""
    with_a_match = matches * min(Fraction(max(matches - 1, 0), 3), Fraction(1))
    without = (10 - matches) * min(Fraction(matches, 3), Fraction(1))
    return (with_a_match + without) / 10


@pytest.mark.parametrize("matches", range(11))
def test_the_soft_score_is_the_mean_that_leaves_one_out(matches):
    assert Fraction(str(soft_score(matches))) == left_out(matches)
    answers = ["red"] * matches + ["blue"] * (10 - matches)
    assert accuracy("red", answers) == soft_score(matches)


@pytest.mark.parametrize(
    ("prediction", "answers", "official", "openvqa"),
    [
        ("2", ["two"] * 10, 0.0, 0.0),  # all equal: the annotators' spelling counts, and OpenVQA keeps it too
        ("two", ["two"] * 10, 1.0, 0.0),
        ("2", ["two"] * 9 + ["2"], 1.0, 0.3),
        ("two", ["two"] * 2 + ["2"] * 8, 1.0, 1.0),
        ("yes", ["Yes"] * 10, 0.0, 0.0),
        ("Yes.", ["yes"] * 10, 0.0, 1.0),
        ("Yes.", ["yes"] * 9 + ["no"], 1.0, 1.0),
        ("dog", ["a dog"] * 8 + ["dog"] * 2, 1.0, 0.6),
        ("t shirt", ["t-shirt"] * 2 + ["shirt"] * 8, 0.6, 0.6),
        ("t shirt", ["t-shirt"] * 10, 0.0, 0.0),
        ("red", [" red\n"] * 3 + ["red"] * 7, 1.0, 1.0),
        ("red", ["\tred "] * 10, 1.0, 0.0),
        ("green", ["red"] * 5 + ["blue"] * 5, 0.0, 0.0),
    ],
)
def test_the_two_evaluators(prediction, answers, official, openvqa):
    assert accuracy(prediction, answers) == official
    assert accuracy(prediction, answers, "openvqa") == openvqa


def test_the_mean_over_questions_and_over_each_type():
    answered = [
        ("yes", ["yes"] * 10, "yes/no"),
        ("no", ["yes"] * 10, "yes/no"),
        ("yes", ["yes"] * 2 + ["no"] * 8, "yes/no"),
        ("3", ["3"] * 3 + ["4"] * 7, "number"),
    ]
    assert evaluate(answered) == {"overall": 62.5, "yes/no": 53.33, "number": 90.0}
    with pytest.raises(UserError, match="no predictions to evaluate"):
        evaluate([])


def test_an_evaluator_that_does_not_exist():
    with pytest.raises(UserError, match='no evaluator "mine"'):
        accuracy("yes", ["yes"] * 10, "mine")
