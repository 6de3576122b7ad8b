"""Mega against its moving averages and the attention of one chunk after another."""

from functools import partial

import pytest
from reference import mega as reference

from attention.checks import agree, stack
from subquad.attention.mega import Mega
from subquad.specs import Pattern


@pytest.mark.parametrize("lengths", ["37", "padded", "short"])
@pytest.mark.parametrize(("chunk", "function"), [(8, "softmax"), (8, "laplace"), (None, "softmax")])
def test_equals_the_printed_form(chunk: int | None, function: str, lengths: str) -> None:
    factory = partial(Mega, chunk=chunk, function=function, states=3)
    agree(stack(factory, Pattern.SELF), reference.layer, lengths)
