"""Numbers as papers print them."""

import pytest

from subquad.results.published_value import Printed, split_line
from subquad.utils.errors import UserError


@pytest.mark.parametrize(
    ("text", "value", "spread", "digits"),
    [
        ("38.10±0.40", 38.10, 0.40, 2),
        ("44M", 44.0, None, 0),
        ("5.2M", 5.2, None, 1),
        ("13x", 13.0, None, 0),
        ("1,360", 1360.0, None, 0),
        ("85,692.18", 85692.18, None, 2),
        ("-0.5", -0.5, None, 1),
        (".5", 0.5, None, 1),
        ("65.20", 65.2, None, 2),
    ],
)
def test_a_number_keeps_its_spread_and_its_digits(text, value, spread, digits):
    printed = Printed.parse(text)
    assert printed == Printed(text, value, spread, digits)


@pytest.mark.parametrize("text", ["O(n√n)", "29-1751", "1k-4k"])
def test_words_have_no_value(text):
    assert Printed.parse(text) == Printed(text)


def test_underscores_are_the_spaces_of_words():
    assert Printed.parse("O(n_log(n))") == Printed("O(n log(n))")


def test_a_dash_is_nothing():
    assert Printed.parse("-") is None


@pytest.mark.parametrize(("text", "rounding"), [("44M", 0.5), ("6.1", 0.05), ("38.10±0.40", 0.005)])
def test_rounding_is_half_of_the_last_digit(text, rounding):
    printed = Printed.parse(text)
    assert printed is not None
    assert printed.rounding == pytest.approx(rounding)


def test_a_line_has_a_text_for_each_column():
    assert split_line("44M  67.17 -", 3, "row MCAN") == ["44M", "67.17", "-"]
    with pytest.raises(UserError, match="row MCAN prints 2 cells and has 3 columns; write a dash"):
        split_line("44M 67.17", 3, "row MCAN")


def test_a_lone_number_must_be_quoted():
    """YAML has dropped its last zero by then."""
    with pytest.raises(UserError, match=r"row DBA prints the number 65\.2; put it in quotes"):
        split_line(65.20, 1, "row DBA")
