"""Bugs that the attention tests must catch, one file for each mechanism; tests/mutations.py plants them."""

from typing import NamedTuple


class Bug(NamedTuple):
    """`old`, which occurs once in `file` (below src/subquad, or configs/...), becomes `new`.

    `tests` names the file that must notice, where it is not among the mechanism's own tests.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str = ""
