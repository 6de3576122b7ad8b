"""Nyströmformer against its three matrices written out, on both sides of h·landmarks = d, and its limits."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from attention.cells import HEADS, prefix
from attention.checks import LENGTHS, LONGEST, agree, by_head, one, stack, tokens
from subquad.attention.nystromformer import Nystromformer, naive_nystromformer
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern


def layer(landmarks: int, iterations: int | None = 6, query_len: int = LONGEST):
    segments = (-(-query_len // landmarks), -(-LONGEST // landmarks))

    def head(module, number, *qkv):
        taps = None if module.filters is None else module.filters[number]
        return naive_nystromformer(*qkv, segments, iterations, taps)

    return by_head(head, HEADS)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("kernel", [None, 3])
@pytest.mark.parametrize("landmarks", [5, 9])
def test_equals_the_printed_form(landmarks: int, kernel: int | None, pattern: Pattern, lengths: str) -> None:
    build = partial(Nystromformer, landmarks=landmarks, kernel=kernel)
    agree(stack(build, pattern), layer(landmarks), lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("landmarks", [3, 9])
def test_exact_inverse_equals_the_printed_form(landmarks: int, lengths: str) -> None:
    """With few landmarks and large logits, because the inverse of a nearly singular matrix is not comparable."""
    layers = stack(partial(Nystromformer, landmarks=landmarks, kernel=None, pinv="exact"), Pattern.SELF, layers=1)
    with torch.no_grad():
        layers[0].projections.query.weight.mul_(8)
        layers[0].projections.key.weight.mul_(8)
    agree(layers, layer(landmarks, iterations=None), lengths)


def test_queries_have_segments_of_their_own_length() -> None:
    layers = stack(partial(Nystromformer, landmarks=4), Pattern.CROSS, query_len=LONGEST + 40)
    agree(layers, layer(4, query_len=LONGEST + 40), "padded")


def softmax_of(attention: Nystromformer) -> Softmax:
    """Softmax attention with the same maps."""
    exact = Softmax(attention.site).double()
    exact.projections.load_state_dict(attention.projections.state_dict())
    return exact


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [HEADS, 1])
@pytest.mark.parametrize("pattern", Pattern)
def test_a_landmark_for_each_token_and_the_exact_inverse_equal_softmax(pattern, heads: int, masked: bool) -> None:
    """S S⁺ S = S; one head takes the form without projected tokens, four heads the other."""
    build = partial(Nystromformer, landmarks=LONGEST, kernel=None, pinv="exact")
    attention = one(build, pattern, heads=heads, dim=40).eval()
    assert attention.narrow == (heads == 1)
    with torch.no_grad():
        attention.projections.query.weight.mul_(4)
        attention.projections.key.weight.mul_(4)
    context = tokens(2, LONGEST, 40)
    x = context if pattern is Pattern.SELF else tokens(2, LONGEST, 40)
    mask = prefix([LONGEST, 20], LONGEST) if masked else None
    masks = Masks(mask, mask)
    got, want = attention(x, context, masks)[0], softmax_of(attention)(x, context, masks)[0]
    assert_close(got[mask] if masked else got, want[mask] if masked else want, rtol=0, atol=1e-7)


def test_the_iteration_approaches_the_inverse() -> None:
    errors = []
    for iterations in (6, 12, 20):
        torch.manual_seed(3)
        build = partial(Nystromformer, landmarks=LONGEST, kernel=None, iterations=iterations)
        attention, x = one(build, heads=1), 3 * tokens(1, 24, 24)
        with torch.no_grad():  # each token attends mostly to itself, so that no singular value is small
            attention.projections.key.weight.copy_(attention.projections.query.weight.copy_(0.2 * torch.eye(24)))
        errors.append((attention(x, x, Masks())[0] - softmax_of(attention)(x, x, Masks())[0]).norm())
    assert errors[0] > 10 * errors[1] > 0
    assert errors[1] > 10 * errors[2]
    assert errors[2] < 1e-9


def test_segments_of_equal_tokens_lose_nothing() -> None:
    """Tokens that repeat within each segment: landmarks are the tokens themselves, and softmax is exact."""
    attention = one(partial(Nystromformer, landmarks=4, kernel=None, pinv="exact"), context_len=12, query_len=12)
    with torch.no_grad():
        attention.projections.query.weight.mul_(8)
        attention.projections.key.weight.mul_(8)
    x = tokens(2, 4, 24).repeat_interleave(3, 1)
    assert_close(attention(x, x, Masks())[0], softmax_of(attention)(x, x, Masks())[0], rtol=0, atol=1e-8)


def test_the_convolution_of_one_tap_adds_scaled_values() -> None:
    attention, x = one(partial(Nystromformer, landmarks=5, kernel=1)), tokens(2, LONGEST, 24)
    plain = one(partial(Nystromformer, landmarks=5, kernel=None))
    plain.projections.load_state_dict(attention.projections.state_dict())
    with torch.no_grad():
        attention.filters.fill_(2)
    p = attention.projections
    difference = attention(x, x, Masks())[0] - plain(x, x, Masks())[0]
    assert_close(difference, 2 * p.value(x) @ p.out.weight.T)


def test_cross_attention_has_no_convolution() -> None:
    assert one(Nystromformer, Pattern.CROSS).filters is None
    assert one(Nystromformer, Pattern.SELF).filters.shape == (HEADS, 35)


def test_only_without_convolution_it_approximates_softmax() -> None:
    assert one(partial(Nystromformer, kernel=None)).approximates_softmax
    assert not one(Nystromformer).approximates_softmax


@pytest.mark.parametrize("landmarks", [5, 9])
def test_dropout_acts_on_the_weights(landmarks: int) -> None:
    attention = one(partial(Nystromformer, landmarks=landmarks, kernel=None), dropout=0.5)
    x = tokens(2, LONGEST, 24)
    dropped = attention(x, x, Masks())[0]
    assert not torch.allclose(dropped, attention.eval()(x, x, Masks())[0])
