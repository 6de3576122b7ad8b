"""Attention-Conv1D and Attention-Conv2D against sums over neighbours, token by token."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from attention.cells import HEADS, prefix, site
from attention.checks import LENGTHS, LONGEST, agree, by_head, one, stack, tokens
from subquad.attention.conv import AttentionConv, naive_attention_conv, naive_convolution
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

AXES = pytest.mark.parametrize("axes", [1, 2])
GRID = (5, 7)


def layer(width: int, leading: int = 0):
    return by_head(lambda module, h, *qkv: naive_attention_conv(*qkv, module.kernel[h], width, leading), HEADS)


def moved(layers: nn.Module) -> nn.Module:
    """Kernels away from the identity they start at."""
    for name, parameter in layers.named_parameters():
        if name.endswith("kernel"):
            nn.init.normal_(parameter, std=0.5)
    return layers


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_equals_the_printed_form_along_the_tokens(kernel: int, lengths: str) -> None:
    layers = moved(stack(partial(AttentionConv, kernel=kernel), Pattern.SELF, grid=GRID))
    agree(layers, layer(LONGEST), lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_equals_the_printed_form_over_the_grid(kernel: int, lengths: str) -> None:
    """37 tokens: two ahead of the grid and 5 x 7 in it; shorter sequences end inside it, or before it."""
    layers = moved(stack(partial(AttentionConv, kernel=kernel, axes=2), Pattern.SELF, grid=GRID))
    agree(layers, layer(7, leading=2), lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_without_a_grid_the_tokens_are_one_row(lengths: str) -> None:
    layers = moved(stack(partial(AttentionConv, kernel=3, axes=2), Pattern.SELF))
    agree(layers, layer(LONGEST), lengths)


@AXES
@pytest.mark.parametrize("masked", [False, True])
def test_it_starts_as_softmax_attention(axes: int, masked: bool) -> None:
    attention, x = one(partial(AttentionConv, axes=axes), grid=GRID), tokens(3, LONGEST, 24)
    mask = prefix([LONGEST, 9, 1], LONGEST) if masked else None
    softmax = Softmax(attention.site).double()
    softmax.projections.load_state_dict(attention.projections.state_dict())
    of_conv, of_softmax = (module(x, x, Masks(mask, mask))[0] for module in (attention, softmax))
    real = slice(None) if mask is None else mask
    assert_close(of_conv[real], of_softmax[real])


def test_a_tap_ahead_of_the_middle_reads_the_token_before() -> None:
    attention, x = one(partial(AttentionConv, kernel=3)), tokens(2, 13, 24)
    with torch.no_grad():
        attention.kernel.copy_(torch.tensor([1.0, 0, 0]))
    p = attention.projections
    q, k, v = p.query(x), p.key(x), p.value(x)
    late_q, late_k = (torch.cat([torch.zeros_like(t[:, :1]), t[:, :-1]], 1) for t in (q, k))
    weights = (p.split(late_q) @ p.split(late_k).mT / 6**0.5).softmax(-1)
    assert_close(attention(x, x, Masks())[0], p.merge(weights @ p.split(v)))


@AXES
def test_convolution_commutes_with_the_projection(axes: int) -> None:
    """Conv(X W + 1 bᵀ) = Conv(X) W + Conv(1) bᵀ: at the borders the bias is weighed by the taps that are inside."""
    attention = moved(one(partial(AttentionConv, axes=axes), grid=GRID))
    p, width = attention.projections, LONGEST if axes == 1 else 7
    x = tokens(35, 24)
    for h, kernel in enumerate(attention.kernel):
        weight, bias = p.query.weight.chunk(HEADS)[h], p.query.bias.chunk(HEADS)[h]
        after = naive_convolution(x @ weight.T + bias, kernel, width)
        before = naive_convolution(x, kernel, width) @ weight.T
        ones = naive_convolution(torch.ones(35, 1, dtype=x.dtype), kernel, width)
        assert_close(after, before + ones * bias)
        assert not torch.allclose(after, before + bias, atol=1e-3)


def test_each_head_has_its_own_kernel_and_values_are_not_convolved() -> None:
    attention = one(partial(AttentionConv, kernel=5))
    assert attention.kernel.shape == (HEADS, 1, 5)
    assert one(partial(AttentionConv, kernel=3, axes=2)).kernel.shape == (HEADS, 3, 3)
    with torch.no_grad():
        attention.kernel.zero_()
    x, p = tokens(2, 13, 24), attention.projections
    assert_close(attention(x, x, Masks())[0], p.out(p.value(x).mean(1, keepdim=True)).expand(-1, 13, -1))


@AXES
def test_appended_padding_changes_nothing(axes: int) -> None:
    attention, x = moved(one(partial(AttentionConv, axes=axes), grid=GRID)), tokens(2, 11, 24)
    longer, mask = torch.cat([x, 1e3 * tokens(2, 26, 24)], 1), prefix([11, 11], LONGEST)
    assert_close(attention(longer, longer, Masks(mask, mask))[0][:, :11], attention(x, x, Masks())[0])


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(AttentionConv, dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0])


def test_grids_larger_than_the_sequence_are_refused() -> None:
    with pytest.raises(UserError, match="grid of 4 x 4 has more places than the 13 tokens"):
        AttentionConv(site(Pattern.SELF, grid=(4, 4)), axes=2)
