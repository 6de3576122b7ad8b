"""The scans in chunks against the recurrences, token by token, and against the matrix of all pairs."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad.measure.memory import LiveTensors
from subquad.ops.chunked_scan import both_ways, gated_delta_scan, gated_scan

CHUNK, LENGTHS = 8, [1, 7, 8, 21]


def recurrent(q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
    """With β: the gated delta rule; without: the gated sum."""
    *beta, log_gate = gates
    state, outputs = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for i in range(q.shape[-2]):
        state = log_gate[..., i, None, None].exp() * state
        new = v[..., i, :]
        if beta:
            new = beta[0][..., i, None] * (new - (state.mT @ k[..., i, :, None]).squeeze(-1))
        state = state + k[..., i, :, None] * new[..., None, :]
        outputs.append((q[..., i, None, :] @ state).squeeze(-2))
    return torch.stack(outputs, -2)


def quadratic(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor) -> Tensor:
    n = q.shape[-2]
    weights = [[log_gate[..., j + 1 : i + 1].sum(-1).exp() * (j <= i) for j in range(n)] for i in range(n)]
    matrix = torch.stack([torch.stack(row, -1) for row in weights], -2)
    return (q @ k.mT * matrix) @ v


def inputs(length: int, delta: bool) -> list[Tensor]:
    q, k = (torch.randn(2, 3, length, 5, dtype=torch.float64) for _ in range(2))
    v, gate, beta = torch.randn(2, 3, length, 4, dtype=torch.float64), *torch.randn(2, 2, 3, length).double()
    return [q, k / k.norm(dim=-1, keepdim=True), v, *([beta.sigmoid()] * delta), -gate.square()]


def agree(one: Callable[..., Tensor], other: Callable[..., Tensor], given: list[Tensor]) -> None:
    given = [t.requires_grad_() for t in given]
    results = [one(*given), other(*given)]
    assert_close(*results, rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(results[0])
    assert_close(*(torch.autograd.grad(y, given, weights) for y in results), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_gated_scan_is_the_recurrence_and_the_matrix(length: int) -> None:
    agree(partial(gated_scan, chunk=CHUNK), recurrent, inputs(length, delta=False))
    agree(partial(gated_scan, chunk=CHUNK), quadratic, inputs(length, delta=False))
    q, k, v, gate = inputs(length, delta=False)
    agree(partial(gated_scan, chunk=CHUNK), recurrent, [q[:, :1], k[:, :1], v, gate])  # which all heads share


@pytest.mark.parametrize("length", LENGTHS)
def test_the_delta_scan_is_the_recurrence(length: int) -> None:
    agree(partial(gated_delta_scan, chunk=CHUNK), recurrent, inputs(length, delta=True))


@pytest.mark.parametrize("delta", [False, True])
def test_padding_anywhere_is_an_identity_step(delta: bool) -> None:
    scan = partial(gated_delta_scan if delta else gated_scan, chunk=CHUNK)
    given, real = inputs(21, delta), torch.rand(21) < 0.7
    held = [t * real.view(-1, *[1] * (t.ndim - 3)) for t in given]
    dropped = [t[:, :, real] for t in given]
    assert_close(scan(*held)[:, :, real], scan(*dropped), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("delta", [False, True])
def test_strong_gates_and_equal_keys_have_finite_gradients(delta: bool) -> None:
    """exp of a masked difference is 0, and its gradient too; equal keys make the triangular system ill-conditioned."""
    q, k, v, *beta, gate = (t.float() for t in inputs(130, delta))
    k, gate = k[:, :, :1].expand_as(k), 1e4 * gate
    given = [t.clone().requires_grad_() for t in (q, k, v, *(torch.ones_like(b) for b in beta), gate)]
    y = (gated_delta_scan if delta else gated_scan)(*given)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(t.grad.isfinite().all() for t in given)


def test_the_second_direction_starts_at_the_last_token() -> None:
    given = inputs(21, delta=False)
    axes = (-2, -2, -2, -1)
    left, right = both_ways(partial(gated_scan, chunk=CHUNK), *((t, t) for t in given), axes=axes)
    assert_close(left, recurrent(*given))
    flipped = recurrent(*(t.flip(axis) for t, axis in zip(given, axes, strict=True)))
    assert_close(right, flipped.flip(-2))


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.slow
def test_memory_of_training_is_linear_in_the_tokens(delta: bool) -> None:
    peaks = []
    for length in (1024, 2048):
        given = [t.float().requires_grad_() for t in inputs(length, delta)]
        with LiveTensors() as live:
            (gated_delta_scan if delta else gated_scan)(*given).sum().backward()
        peaks.append(live.peak)
    assert peaks[1] < 2.1 * peaks[0]
