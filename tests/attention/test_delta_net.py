"""DeltaNet and gated DeltaNet against their recurrences from either end."""

from functools import partial

import pytest
from reference import delta_net as reference

from attention.cells import HEADS
from attention.checks import agree, stack
from subquad.attention.delta_net import DeltaNet
from subquad.specs import Pattern


@pytest.mark.parametrize("lengths", ["37", "padded", "short"])
@pytest.mark.parametrize(("gated", "kernel"), [(True, 7), (False, None)])
def test_equals_the_printed_form(gated: bool, kernel: int | None, lengths: str) -> None:
    factory = partial(DeltaNet, gated=gated, kernel=kernel)
    agree(stack(factory, Pattern.SELF), partial(reference.layer, heads=HEADS), lengths)
