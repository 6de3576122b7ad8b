"""YOSO and its sampled form against the matrix of weights, and the weights against random hyperplanes."""

from functools import partial

import pytest
import torch
from reference import yoso as reference
from torch.testing import assert_close

from attention.cells import HEADS
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention import yoso
from subquad.attention.yoso import YOSO, SampledYOSO
from subquad.specs import Masks, Pattern
from subquad.utils.derivatives import plain_operators


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("bits", [1, 6, 11])
def test_equals_the_printed_form(bits: int, pattern: Pattern, lengths: str) -> None:
    agree(
        stack(partial(YOSO, bits=bits), pattern),
        partial(reference.layer, heads=HEADS, bits=bits, sampled=False),
        lengths,
    )


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("bits", [1, 4])
def test_sampled_equals_the_matrix_of_collisions(bits: int, pattern: Pattern, lengths: str) -> None:
    build = partial(SampledYOSO, bits=bits, hashes=3)
    agree(stack(build, pattern), partial(reference.layer, heads=HEADS, bits=bits, sampled=True), lengths)


@pytest.mark.parametrize(("build", "sampled"), [(YOSO, False), (partial(SampledYOSO, hashes=3), True)])
def test_blocks_change_nothing(build, sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yoso, "_BLOCK", 2000)
    monkeypatch.setattr(yoso, "_TOKENS", 5)
    agree(
        stack(partial(build, bits=3), Pattern.CROSS),
        partial(reference.layer, heads=HEADS, bits=3, sampled=sampled),
        "padded",
    )


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_weights_are_the_rate_of_collisions(bits: int) -> None:
    q, k = (torch.nn.functional.normalize(torch.randn(5, 6, dtype=torch.float64), dim=1) for _ in range(2))
    q[0] = k[0]
    rate = reference.shared(q, k, torch.randn(6, 20_000, bits, dtype=torch.float64))
    assert_close(yoso._expected(q[None] @ k[None].mT, bits)[0], rate, rtol=0, atol=0.015)
    assert rate[0, 0] == 1


def test_more_hashes_come_closer_to_the_expectation() -> None:
    x = tokens(2, LONGEST, 24)
    expected = one(partial(YOSO, bits=3))
    want, errors = expected(x, x, Masks())[0], []
    for hashes in (4, 64, 1024):
        sampled = one(partial(SampledYOSO, bits=3, hashes=hashes))
        sampled.projections.load_state_dict(expected.projections.state_dict())
        errors.append((sampled(x, x, Masks())[0] - want).norm() / want.norm())
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.05


@pytest.mark.parametrize("build", [YOSO, SampledYOSO])
def test_equal_and_opposite_vectors_have_finite_gradients(build) -> None:
    """arccos has none at ±1."""
    attention = one(build, Pattern.SELF)
    with torch.no_grad():
        attention.projections.key.load_state_dict(attention.projections.query.state_dict())
    x = tokens(1, 6, 24).requires_grad_()
    attention(x, x, Masks())[0].square().sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() > 0


def test_outputs_of_heads_have_length_one() -> None:
    attention, x = one(YOSO), tokens(2, LONGEST, 24)
    with torch.no_grad():
        attention.projections.out.weight.copy_(torch.eye(24))
        attention.projections.out.bias.zero_()
    heads = attention(x, x, Masks())[0].unflatten(-1, (HEADS, -1))
    assert_close(heads.norm(dim=-1), torch.ones_like(heads[..., 0]))


def test_new_hyperplanes_are_drawn_before_every_step() -> None:
    attention, x = one(partial(SampledYOSO, bits=3, hashes=3)), tokens(2, LONGEST, 24)
    before, y = attention.planes.clone(), attention(x, x, Masks())[0]
    assert all(attention.due(epoch, batch, step) for epoch, batch, step in [(0, 0, 0), (0, 1, 1), (2, 0, 9)])
    assert_close(attention(x, x, Masks())[0], y, rtol=0, atol=0)
    attention.refresh(x, x, Masks())
    assert not (attention.planes == before).any()
    assert not torch.allclose(attention(x, x, Masks())[0], y)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # of torch itself
@pytest.mark.parametrize("kind", [YOSO, SampledYOSO])
def test_second_derivatives_in_both_modes_are_the_same_where_nothing_is_read(kind):
    layer, x, along = kind(dim=16, heads=2).double(), *torch.randn(2, 2, 12, 16).double()
    mask = torch.tensor([[False], [True]]).expand(2, 12)

    def total(x):
        return (layer(x, mask=mask) * along).sum()

    _, want = torch.func.jvp(torch.func.grad(total), (x,), (along,))
    with plain_operators():
        (slope,) = torch.autograd.grad(total(x.requires_grad_()), x, create_graph=True)
    assert_close(torch.autograd.grad((slope * along).sum(), x)[0], want)
