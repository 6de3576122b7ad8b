"""FLARE against the product of its two softmaxes."""

from functools import partial

import pytest
from reference import flare as reference

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, stack
from subquad.attention.flare import FLARE
from subquad.specs import Pattern


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_printed_form(lengths: str) -> None:
    agree(stack(partial(FLARE, latents=5), Pattern.SELF), partial(reference.layer, heads=HEADS), lengths)
