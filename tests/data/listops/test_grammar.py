import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subquad.data.listops.grammar import SYMBOLS, VOCAB, decode, encode, evaluate, to_release_text
from subquad.utils.errors import UserError

NAMES = {"[MIN": min, "[MAX": max, "[MED": lambda a: int(statistics.median(a)), "[SM": lambda a: sum(a) % 10}
trees = st.recursive(
    st.integers(0, 9),
    lambda inner: st.tuples(st.sampled_from(sorted(NAMES)), st.lists(inner, min_size=1, max_size=10)),
    max_leaves=40,
)


def value_of(tree):
    return tree if isinstance(tree, int) else NAMES[tree[0]]([value_of(argument) for argument in tree[1]])


def cleaned(tree):
    return str(tree) if isinstance(tree, int) else " ".join([tree[0], *map(cleaned, tree[1]), "X"])


def curried(tree):
    if isinstance(tree, int):
        return str(tree)
    text = tree[0]
    for part in [*map(curried, tree[1]), "]"]:
        text = f"( {text} {part} )"
    return text


def test_vocabulary_is_padding_and_the_fifteen_symbols_of_the_benchmark():
    assert VOCAB == 16
    assert SYMBOLS[0] == ""
    assert set(SYMBOLS[1:]) == {"[MIN", "[MAX", "[MED", "[SM", "X", *"0123456789"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 9 X", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MED 9 1 5 X", 5),
        ("[MED 1 2 X", 1),
        ("[MED 9 0 4 7 X", 5),
        ("[MED 9 9 8 8 X", 8),
        ("[SM 9 9 9 X", 7),
        ("[SM 5 5 X", 0),
        ("[MAX 1 [MIN 8 7 X [SM 6 [MED 3 4 X X X", 9),
        ("[SM [MAX 2 9 X [MIN [SM 4 4 X 9 X 5 X", 2),
        ("( ( ( [MAX 3 ) 5 ) ] )", 5),
        ("( ( ( [MIN ( ( ( [SM 6 ) 7 ) ] ) ) 8 ) ] )", 3),
    ],
)
def test_expressions_evaluated_by_hand(text, value):
    assert evaluate(text) == value
    assert evaluate(encode(text)) == value


def test_release_form_of_the_documented_example():
    assert to_release_text(encode("[MAX 3 5 X")) == "( ( ( [MAX 3 ) 5 ) ] )"


@given(trees)
def test_text_forms_round_trip_and_agree_with_the_tree(tree):
    ids = encode(cleaned(tree))
    assert ids.dtype == np.uint8
    assert decode(ids) == cleaned(tree)
    assert to_release_text(ids) == curried(tree)
    assert encode(curried(tree)).tolist() == ids.tolist()
    assert encode(cleaned(tree).replace("X", "]").replace("MA]", "MAX")).tolist() == ids.tolist()
    assert evaluate(ids) == evaluate(curried(tree)) == value_of(tree)


def test_padding_is_not_decoded():
    assert decode([*encode("[MAX 3 5 X"), 0, 0]) == "[MAX 3 5 X"


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "ends too early, at position 0"),
        ("[MAX 3 5", "ends too early, at position 3"),
        ("[MAX 3 [MIN 4 X", "ends too early, at position 5"),
        ("[MAX X", "without arguments closed at position 1"),
        ("3 X", "goes on after its end, at position 1"),
        ("X", "without an opening one at position 0"),
        ("[MAX 3 5 X 7", "goes on after its end, at position 4"),
        ("[MAX 3 5 X X", "goes on after its end, at position 4"),
        ("[MAX 3 15 X", "symbol '15' at position 2"),
        ("[max 3 5 X", r"symbol '\[max' at position 0"),
        ("( ( ( [MAX 3 ) five ) ] )", "symbol 'five' at position 6"),
        ("( ( ( [MAX 3 ) 5 ) ]", "at position 9 of"),
        ("( ( [MAX 3 ) 5 ) ] )", "at position 2 of"),
        ("( ( ( [MAX 3 ) 5 ) ] ) )", "at position 10 of"),
        ("( [MAX 3 5 ] )", "at position 1 of"),
        ([2, 9, 16, 5], "16 at position 2"),
        ([2, 9, -1, 5], "-1 at position 2"),
        ([2, 9, 0, 5], "Padding inside a ListOps expression at position 2"),
        ([2, 9, 11, 5, 0], "goes on after its end, at position 4"),
    ],
)
def test_malformed_expressions_are_refused_with_the_position(expression, complaint):
    with pytest.raises(UserError, match=complaint):
        evaluate(expression)


@pytest.mark.parametrize("function", [to_release_text, evaluate])
def test_structure_is_checked_wherever_it_is_needed(function):
    with pytest.raises(UserError, match="ends too early"):
        function(encode("[MAX 3 5"))


@pytest.mark.parametrize("function", [to_release_text, evaluate, decode])
def test_ids_are_checked_wherever_they_enter(function):
    with pytest.raises(UserError, match="no ListOps token id"):
        function([99])
