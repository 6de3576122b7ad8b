"""Bugs that the attention tests must catch, one file for each mechanism; tests/mutations.py plants them."""

from typing import NamedTuple


class Bug(NamedTuple):
    """`old`, which occurs once in `file` (below src/subquad), becomes `new`."""

    name: str
    file: str
    old: str
    new: str
