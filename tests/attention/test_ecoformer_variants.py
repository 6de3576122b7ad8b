"""The comparisons of EcoFormer against weights written out."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, one, stack, tokens
from subquad.attention.ecoformer_variants import BiEcoFormer, FPEcoFormer, LSHEcoFormer, naive_attention, naive_weights
from subquad.specs import Masks, Pattern

VARIANTS = {
    "fp": partial(FPEcoFormer, features=10),
    "bi": partial(BiEcoFormer, features=10),
    "lsh": partial(LSHEcoFormer, features=10, bits=6),
}


def layer(attention, x, context, carry, variant):
    q, v = attention.shared(x).chunk(HEADS, 1), attention.value(x).chunk(HEADS, 1)
    planes = attention.planes if variant == "lsh" else [None] * HEADS
    weights = [naive_weights(a, attention.directions, variant, p) for a, p in zip(q, planes, strict=True)]
    return attention.out(torch.cat([naive_attention(w, b) for w, b in zip(weights, v, strict=True)], 1)), carry


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dim", [24, 64], ids=["wide", "narrow"])
def test_equals_the_printed_form(name: str, lengths: str, dim: int) -> None:
    layers = stack(VARIANTS[name], Pattern.SELF, dim=dim)
    agree(layers, partial(layer, variant=name), lengths)


def test_many_features_give_softmax_attention_of_unit_vectors() -> None:
    attention, x = one(partial(FPEcoFormer, features=200_000), heads=1), tokens(1, 13, 24)
    q, v = torch.nn.functional.normalize(attention.shared(x[0])), attention.value(x[0])
    want = attention.out((q @ q.T).softmax(1) @ v)
    mean = attention.out(v.mean(0).expand_as(v))
    error = attention(x, x, Masks())[0][0] - want
    assert error.norm() < 0.1 * (mean - want).norm()


@pytest.mark.parametrize("name", VARIANTS)
def test_vectors_of_zero_give_no_nan(name: str) -> None:
    attention = one(VARIANTS[name])
    with torch.no_grad():
        attention.shared.bias.zero_()
    x = tokens(2, 13, 24)
    x[:, 3:7] = 0
    x.requires_grad_()
    y = attention(x, x, Masks())[0]
    assert y.isfinite().all()
    assert torch.autograd.grad(y.square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_values_give_that_value(name: str) -> None:
    attention, x = one(VARIANTS[name]), tokens(2, 13, 24)
    with torch.no_grad():
        attention.value.weight.zero_()
        attention.value.bias.fill_(1)
        attention.out.weight.copy_(torch.eye(24))
        attention.out.bias.zero_()
    assert_close(attention(x, x, Masks())[0], torch.ones_like(x))
