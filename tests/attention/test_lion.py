"""LION against its matrix of decays."""

from functools import partial

import pytest
from reference import lion as reference

from attention.cells import HEADS
from attention.checks import agree, stack
from subquad.attention.lion import LION
from subquad.specs import Pattern


@pytest.mark.parametrize("lengths", ["37", "padded", "short"])
@pytest.mark.parametrize("decay", ["none", "fixed", "selective"])
def test_equals_the_printed_form(decay: str, lengths: str) -> None:
    agree(stack(partial(LION, decay=decay), Pattern.SELF), partial(reference.layer, heads=HEADS), lengths)
