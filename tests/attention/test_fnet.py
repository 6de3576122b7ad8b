"""FNet against matrices of cosines and sines, and the algebra of Fourier transforms."""

from functools import partial

import pytest
import torch
from reference import fnet as reference
from torch.testing import assert_close

from attention.checks import LENGTHS, agree, one, stack, tokens
from subquad.attention.fnet import FNet
from subquad.specs import Masks, Pattern


@pytest.mark.parametrize("longest", [37, 38, 64])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_printed_form(lengths: str, longest: int) -> None:
    layers = stack(FNet, Pattern.SELF, query_len=longest, context_len=longest)
    agree(layers, partial(reference.layer, longest=longest), lengths)


@pytest.mark.parametrize(("length", "dim"), [(37, 24), (38, 24), (1, 24), (2, 8), (3, 4)])
def test_equals_the_whole_spectrum(length: int, dim: int) -> None:
    attention, x = one(FNet, query_len=length, context_len=length, dim=dim), tokens(2, length, dim)
    assert_close(attention(x, x, Masks())[0], torch.fft.fft2(x).real)


def test_first_output_is_the_sum_of_all() -> None:
    x = tokens(2, 37, 24)
    assert_close(one(FNet)(x, x, Masks())[0][:, 0, 0], x.sum((1, 2)))


def test_twice_is_the_tokens_and_their_mirror_image() -> None:
    attention, x = one(FNet), tokens(2, 37, 24)
    once = attention(x, x, Masks())[0]
    mirrored = x.flip(1, 2).roll((1, 1), (1, 2))
    assert_close(attention(once, once, Masks())[0], 37 * 24 / 2 * (x + mirrored))


def test_has_no_parameters() -> None:
    assert one(FNet).state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_transformed_in_single(dtype: torch.dtype) -> None:
    attention, x = one(FNet), tokens(2, 37, 24).to(dtype)
    y = attention(x, x, Masks())[0]
    assert y.dtype == dtype
    assert torch.equal(y, attention(x.float(), x.float(), Masks())[0].to(dtype))
