"""Numbers as a paper prints them: value, spread and how many digits are given."""

import re
from dataclasses import dataclass
from typing import Literal, Self

from subquad.utils.errors import UserError

Direction = Literal["higher", "lower", "equal"]
"""Which way a metric is better; "equal" for quantities that are counted and have no better side."""

_NUMBER = re.compile(r"(?P<value>-?[\d,]*\.?\d+)(?P<suffix>[BMKx%]?)(?:±(?P<spread>\d*\.?\d+))?")


@dataclass(frozen=True, slots=True)
class Printed:
    """One cell of a printed table. `value` is None where the cell holds text, such as a complexity."""

    text: str
    value: float | None = None
    spread: float | None = None
    digits: int = 0
    """Decimal places of the value."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parses `38.10±0.40`, `44M`, `6.1`, or words joined by underscores; None for a dash, an empty cell.

        A suffix B, M or K counts billions, millions or thousands of the unit and stays with the number: 44M is 44 in a
        column of millions.
        """
        if text == "-":
            return None
        found = _NUMBER.fullmatch(text)
        if found is None:
            return cls(text.replace("_", " "))
        value = found["value"].replace(",", "")
        spread = None if found["spread"] is None else float(found["spread"])
        return cls(text, float(value), spread, len(value.partition(".")[2]))

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit: what any exact value may differ by."""
        return 0.5 * 10.0**-self.digits


def split_line(line: object, cells: int, where: str) -> list[str]:
    """The texts of a printed row, separated by spaces; raises UserError where their number is wrong.

    YAML reads a lone 65.20 as a number and drops its zero, so a row must be text.
    """
    if not isinstance(line, str):
        raise UserError(f"{where} prints the number {line}; put it in quotes, so that no digit is lost.")
    texts = line.split()
    if len(texts) != cells:
        raise UserError(
            f'{where} prints {len(texts)} cells and has {cells} columns; write a dash for a cell that is not run, "?" '
            "for one that is run and has no known number."
        )
    return texts
