"""Attentions of given queries, keys and values: they compute what the attention itself computes from tokens."""

from contextlib import nullcontext

import pytest
import torch
from attention.cells import DIM, HEADS, shrunk, site
from conftest import made, mechanisms
from torch.testing import assert_close

from subquad.library.of_heads import attend_heads, core_of, reads_heads
from subquad.specs import Masks, Pattern
from subquad.utils.devices import as_on_a_gpu

LENGTH = 61
REAL = torch.arange(LENGTH) < torch.tensor([[40], [LENGTH]])


@pytest.mark.parametrize("on", [nullcontext, as_on_a_gpu], ids=["cpu", "as_on_a_gpu"])
@pytest.mark.parametrize("name", mechanisms())
def test_from_projected_tokens_comes_what_the_attention_makes_of_tokens(name, on):
    grid = (1, LENGTH) if name == "attention_conv2d" else None
    attention = shrunk(made("attention", name))(
        site=site(Pattern.SELF, query_len=LENGTH, context_len=LENGTH, grid=grid)
    )
    attention, maps = attention.double().eval(), attention.softmax_maps()
    if not reads_heads(attention):
        return  # docs/library.md says which these are, and a test compares it
    x = torch.randn(2, LENGTH, DIM, dtype=torch.double, requires_grad=True)
    masks = Masks(REAL, REAL)

    def heads(role):
        weight, bias = maps[role if role in maps else "query"]
        return (x @ weight.reshape(DIM, DIM).mT + bias.reshape(-1)).unflatten(-1, (HEADS, -1)).transpose(1, 2)

    with on():
        expected = attention(x, x, masks)[0][REAL]
        weight, bias = maps["out"]
        core, qkv = core_of(attention), [heads(role) for role in ("query", "key", "value")]
        y = (attend_heads(core, *qkv, masks) @ weight.mT + bias)[REAL]
        assert_close(y, expected, rtol=1e-9, atol=1e-11)
        with torch.no_grad():  # where mechanisms write into what they have projected
            assert_close((attend_heads(core, *qkv, masks) @ weight.mT + bias)[REAL], y, rtol=1e-9, atol=1e-11)
        gradient = torch.randn_like(y)
        of_x = torch.autograd.grad(y, x, gradient)[0], torch.autograd.grad(expected, x, gradient)[0]
        assert_close(*of_x, rtol=1e-8, atol=1e-10)
