"""Kernels and convolutions of state space models against recurrences with dense matrices."""

import math

import pytest
import torch
from reference import s4 as printed
from torch import Tensor
from torch.testing import assert_close

from subquad.ops import state_space as ssm

exactly = {"rtol": 0, "atol": 1e-10}
DT = torch.tensor([0.004, 0.03, 0.2], dtype=torch.float64)
LENGTHS = [1, 2, 7, 32, 33]


def dense(a: Tensor, b: Tensor, p: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A and B of one model with all states."""
    full = torch.diag(printed.with_conjugates(a))
    if p is not None:
        p = printed.with_conjugates(p)
        full = full - torch.outer(p, p.conj())
    return full, printed.with_conjugates(b)


def impulse(a_bar: Tensor, b_bar: Tensor, c: Tensor, length: int) -> Tensor:
    return printed.run(a_bar, b_bar, c, torch.eye(1, length, dtype=torch.float64)[0])


def drawn(states: int) -> tuple[Tensor, ...]:
    """Λ, p, B of three models of no special form, and two C of each."""
    a = torch.complex(-torch.rand(3, states // 2) - 0.1, 6 * torch.randn(3, states // 2)).to(torch.complex128)
    p, b = (torch.randn(3, states // 2, dtype=torch.complex128) for _ in range(2))
    return a, p, b, torch.randn(2, 3, states // 2, dtype=torch.complex128)


def test_legs_is_minus_a_half_and_a_skew_matrix_after_its_low_rank_term():
    a, b = printed.dense_legs(9)
    for got, want in zip(ssm.legs(9), (a, b), strict=True):
        assert_close(got, want)
    p = torch.sqrt(torch.arange(9).double() + 0.5)
    rest = a + torch.outer(p, p) + 0.5 * torch.eye(9)
    assert_close(rest, -rest.T, rtol=0, atol=1e-13)


def test_legs_pairs_are_legs_in_another_basis():
    """Powers of A between B and P do not depend on the basis."""
    a, b = printed.dense_legs(8)
    low_rank = torch.sqrt(torch.arange(8).double() + 0.5)
    full, full_b = dense(*(t for i, t in enumerate(ssm.legs_pairs(8)) if i != 1), p=ssm.legs_pairs(8)[1])
    full_p = printed.with_conjugates(ssm.legs_pairs(8)[1])
    left, right = b.clone(), full_b.clone()
    for _ in range(6):
        want, got = low_rank @ left, full_p.conj() @ right
        assert_close(got.real, want, rtol=1e-9, atol=0)
        assert abs(got.imag) < 1e-9 * abs(want)
        left, right = a @ left, full @ right


def test_frequencies_of_legs_64():
    a, _, _ = ssm.legs_pairs(64)
    assert a.real.tolist() == [-0.5] * 32
    assert a.imag[0].item() == pytest.approx(0.264, abs=1e-3)
    assert a.imag[-1].item() == pytest.approx(1303, abs=1)


def test_diagonal_starts():
    lin, ones = ssm.diagonal_pairs(6, "lin")
    assert_close(
        lin, torch.complex(torch.full((3,), -0.5), math.pi * torch.arange(3.0)).to(lin.dtype), atol=1e-6, rtol=0
    )
    assert ones.tolist() == [1] * 3
    inv, _ = ssm.diagonal_pairs(6, "inv")
    assert_close(inv.imag, torch.tensor([6 / math.pi * (6 / (2 * n + 1) - 1) for n in range(3)], dtype=torch.float64))
    assert_close(ssm.diagonal_pairs(6, "legs")[0], ssm.legs_pairs(6)[0])


@pytest.mark.parametrize("length", LENGTHS)
def test_low_rank_kernel_is_the_recurrence(length):
    a, p, b, c = drawn(8)
    truncated = c - ssm.advanced(c, ssm.dense_bilinear(a, p, DT), length)
    got = ssm.dplr_kernel(a, p, b, truncated, DT, length)
    for h in range(3):
        steps = printed.bilinear(*dense(a[h], b[h], p[h]), DT[h])
        for r in range(2):
            assert_close(got[r, h], impulse(*steps, printed.with_conjugates(c[r, h]), length), **exactly)


@pytest.mark.parametrize("length", LENGTHS)
def test_low_rank_kernel_of_legs_is_that_of_the_dense_matrix(length):
    """In the basis of HiPPO, with P as the read-out: nothing of the eigenbasis is left."""
    a, p, b = (t.expand(3, -1) for t in ssm.legs_pairs(8))
    low_rank = torch.sqrt(torch.arange(8).double() + 0.5)
    c = p.conj()[None]
    truncated = c - ssm.advanced(c, ssm.dense_bilinear(a, p, DT), length)
    got = ssm.dplr_kernel(a, p, b, truncated, DT, length)[0]
    for h in range(3):
        assert_close(got[h], impulse(*printed.bilinear(*printed.dense_legs(8), DT[h]), low_rank, length), **exactly)


def test_a_kernel_twice_as_long_by_doubling():
    a, p, b, c = drawn(6)
    a_bar = ssm.dense_bilinear(a, p, DT)
    short = c - ssm.advanced(c, a_bar, 12)
    doubled = short + ssm.advanced(short, a_bar, 12)
    assert_close(doubled, c - ssm.advanced(c, a_bar, 24), **exactly)
    longer = ssm.dplr_kernel(a, p, b, doubled, DT, 24)
    assert_close(longer[..., :12], ssm.dplr_kernel(a, p, b, short, DT, 12), **exactly)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("length", LENGTHS)
def test_diagonal_kernel_is_the_recurrence(length, rule):
    a, _, b, c = drawn(8)
    got = ssm.diagonal_kernel(*getattr(ssm, rule)(a, b, DT), c, length)
    for h in range(3):
        steps = getattr(printed, rule)(*dense(a[h], b[h]), DT[h])
        for r in range(2):
            assert_close(got[r, h], impulse(*steps, printed.with_conjugates(c[r, h]), length), **exactly)


def test_without_its_low_rank_term_the_kernel_is_the_diagonal_one():
    a, p, b, c = drawn(8)
    truncated = c - ssm.advanced(c, ssm.dense_bilinear(a, 0 * p, DT), 20)
    got = ssm.dplr_kernel(a, 0 * p, b, truncated, DT, 20)
    assert_close(got, ssm.diagonal_kernel(*ssm.bilinear(a, b, DT), c, 20), **exactly)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_two_sided_convolution_is_its_sum(n):
    x = torch.randn(2, 3, n, dtype=torch.float64)
    forward, backward = torch.randn(2, 3, n, dtype=torch.float64)
    want = torch.zeros_like(x)
    for t in range(n):
        for s in range(n):
            want[..., t] += x[..., s] * (forward[:, t - s] if s <= t else backward[:, s - t - 1])
    assert_close(ssm.two_sided_convolution(x, forward, backward), want, **exactly)


def test_fast_lengths_are_the_next_products_of_2_3_and_5():
    def smooth(n: int) -> bool:
        for prime in (2, 3, 5):
            while n % prime == 0:
                n //= prime
        return n == 1

    for least in [*range(1, 200), 3997, 8191, 131_071]:
        assert ssm.fast_length(least) == next(n for n in range(least, 2 * least + 1) if smooth(n))


def test_gradients_are_those_of_the_functions():
    a, p, b, c = drawn(4)
    x, forward, backward = (torch.randn(*shape, dtype=torch.float64) for shape in [(2, 3, 5), (3, 5), (3, 5)])
    for length in (4, 5):
        inputs = [t.requires_grad_() for t in (a, p, b, c, DT.clone())]
        assert torch.autograd.gradcheck(lambda *t, length=length: ssm.dplr_kernel(*t, length), inputs)
    assert torch.autograd.gradcheck(ssm.two_sided_convolution, [t.requires_grad_() for t in (x, forward, backward)])


@pytest.mark.parametrize("length", [64, 1000])
def test_float32_kernels_are_close(length):
    a, p, b = (t.expand(3, -1) for t in ssm.legs_pairs(64))
    dt = torch.tensor([0.001, 0.01, 0.1], dtype=torch.float64)
    c = torch.randn(1, 3, 32, dtype=torch.complex128)
    c = c - ssm.advanced(c, ssm.dense_bilinear(a, p, dt), length)
    exact = ssm.dplr_kernel(a, p, b, c, dt, length)
    low = ssm.dplr_kernel(*(t.to(torch.complex64) for t in (a, p, b, c)), dt.float(), length)
    assert low.dtype == torch.float32
    assert (low - exact).norm() < 2e-3 * exact.norm()
