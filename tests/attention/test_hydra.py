"""Hydra against two recurrences that are shifted by one token."""

from functools import partial

import pytest
from reference import hydra as reference

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, stack
from subquad.attention.hydra import Hydra
from subquad.specs import Pattern


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_printed_form(lengths: str) -> None:
    agree(stack(partial(Hydra, state=6), Pattern.SELF), partial(reference.layer, heads=HEADS), lengths)
