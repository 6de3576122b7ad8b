"""Mega against its moving averages and the attention of one chunk after another."""

from functools import partial

import pytest
import torch
from reference import mega as reference

from attention.checks import agree, stack
from subquad.attention.mega import Mega
from subquad.specs import Pattern


@pytest.mark.parametrize("lengths", ["37", "padded", "short"])
@pytest.mark.parametrize(("chunk", "function"), [(8, "softmax"), (8, "laplace"), (None, "softmax")])
def test_equals_the_printed_form(chunk: int | None, function: str, lengths: str) -> None:
    factory = partial(Mega, chunk=chunk, function=function, states=3)
    agree(stack(factory, Pattern.SELF), reference.layer, lengths)


def test_slow_averages_keep_their_length_in_half_precision() -> None:
    layer = Mega(dim=16, heads=2)
    with torch.no_grad():
        for rates in (layer.inflow, layer.damping):
            rates.sub_(3.5)  # a token keeps about 0.999 of its weight, which bfloat16 rounds to 1
    half = layer.bfloat16()._average(x := torch.randn(2, 512, 16, dtype=torch.bfloat16)).float()
    torch.testing.assert_close(half, layer.float()._average(x.float()), rtol=0.01, atol=0.001)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_export_takes_lengths_on_both_sides_of_a_block_of_powers() -> None:
    layer = Mega(dim=16, heads=2, chunk=16).eval()
    shapes = ({1: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(layer, (torch.randn(2, 200, 16),), dynamic_shapes=shapes).module()
    for length in (100, 128, 129, 256, 300):
        x = torch.randn(2, length, 16)
        torch.testing.assert_close(exported(x), layer(x))
