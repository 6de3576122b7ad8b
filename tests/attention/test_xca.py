"""XCA against its printed form; the norms are of real tokens only."""

from functools import partial

import pytest
from reference import xca as reference

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, stack
from subquad.attention.xca import XCA
from subquad.specs import Pattern


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_printed_form(lengths: str) -> None:
    agree(stack(XCA, Pattern.SELF), partial(reference.layer, heads=HEADS), lengths)
