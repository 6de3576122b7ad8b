"""The kernel for cosine-weighted linear attention, compared with explicit weights in double precision."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kernels.checks import needs, threads, with_gradients
from subquad.kernels.build import torchs_own
from subquad.kernels.cosine_attention_kernel import reads, sums_up, wave_read, wave_state
from subquad.ops import cosine_attention

pytestmark = needs("cosine_attention")

SHAPES = {  # batch, heads, queries, keys, features, channels
    "several tiles": (2, 2, 96, 128, 32, 64),
    "odd last tiles": (1, 3, 45, 70, 16, 32),
    "few tokens": (3, 2, 5, 3, 48, 16),
    "one token": (1, 1, 1, 1, 16, 16),
    "one head for several threads": (1, 1, 300, 333, 16, 16),
}


def operands(shape: tuple[int, ...]) -> list[Tensor]:
    """Features of queries and keys, some of them 0, and values."""
    batch, heads, queries, keys, features, channels = shape
    torch.manual_seed(0)
    q, k = (torch.randn(batch, n, heads, features).relu() for n in (queries, keys))
    return [x.requires_grad_() for x in (q, k, torch.randn(batch, keys, heads, channels))]


def wave(places: int, longest: int) -> Tensor:
    angle = torch.arange(1, places + 1) * (torch.pi / 2 / longest)
    return torch.stack([angle.cos(), angle.sin()], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, least: float) -> Tensor:
    longest = max(q.shape[1], k.shape[1])
    return wave_read(q, wave(q.shape[1], longest), *wave_state(k, v, wave(k.shape[1], longest)), least)


def written_out(q: Tensor, k: Tensor, v: Tensor, least: float) -> Tensor:
    longest = max(q.shape[1], k.shape[1])
    places = (torch.arange(1, x.shape[1] + 1, dtype=torch.double) for x in (q, k))
    rows, columns = places
    share = ((rows[:, None] - columns) * (torch.pi / 2 / longest)).cos()
    weights = torch.einsum("bnhe,bmhe->bhnm", q, k) * share
    total = weights.sum(-1).clamp(min=least).mT[..., None]
    return torch.einsum("bhnm,bmhc->bnhc", weights, v) / total


@pytest.mark.parametrize("least", [1e-6, 30.0])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_all_weights_written_out(shape: tuple[int, ...], least: float) -> None:
    inputs = operands(shape)
    assert sums_up(*inputs[1:], wave(shape[3], 400))
    exact = with_gradients(written_out, [x.detach().double().requires_grad_() for x in inputs], least)
    for got, want in zip(with_gradients(attend, inputs, least), exact, strict=True):
        assert_close(got.double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("least", [1e-6, 30.0])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_torchs_operators(shape: tuple[int, ...], least: float) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sums = cosine_attention.kv_state(k, v, wave(k.shape[1], 400))
        return cosine_attention.expand(q, wave(q.shape[1], 400), *sums, least)

    inputs = operands(shape)
    with torch.profiler.profile() as profile:
        ours = with_gradients(attend, inputs)
    names = {event.name for event in profile.events()}
    assert {f"subquad::wave_{name}{way}" for name in ("state", "read") for way in ("", "_backward")} <= names
    with torchs_own():
        theirs = with_gradients(attend, inputs)
    for got, want in zip(ours, theirs, strict=True):
        assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_gradients_of_the_sums_alone() -> None:
    """The gradients hold for any function of S and T, not only for `wave_read`."""
    _, k, v = operands(SHAPES["odd last tiles"])

    def ours(k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([x.sin().flatten() for x in wave_state(k, v, wave(70, 70))])

    def plain(k: Tensor, v: Tensor) -> Tensor:
        cosine, sine = wave(70, 70).double().unbind(-1)
        parts = [torch.einsum("bmhe,bmhc,m->bhec", k, v, w) for w in (cosine, sine)]
        totals = [torch.einsum("bmhe,m->bhe", k, w) for w in (cosine, sine)]
        return torch.cat([x.sin().flatten() for x in (torch.cat(parts, -1), torch.stack(totals, 2))])

    exact = with_gradients(plain, [x.detach().double().requires_grad_() for x in (k, v)])
    for got, want in zip(with_gradients(ours, [k, v]), exact, strict=True):
        assert_close(got.double(), want, atol=1e-4, rtol=1e-4)


def test_operands_are_read_where_they_lie() -> None:
    shape = SHAPES["odd last tiles"]
    inputs = operands(shape)
    wide = [torch.cat([x, x + 1], -1)[..., : x.shape[-1]].detach().requires_grad_() for x in inputs]
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in inputs]
    apart = [x.detach().mT.contiguous().mT.requires_grad_() for x in inputs]
    expected = with_gradients(attend, inputs, 1e-6)
    for others in (wide, turned, apart):
        assert_close(with_gradients(attend, others, 1e-6), expected)


def test_the_default_precision_changes_nothing() -> None:
    inputs = operands(SHAPES["odd last tiles"])
    places = wave(70, 70)
    expected = [x.detach() for x in wave_state(*inputs[1:], places)]
    torch.set_default_dtype(torch.float64)
    try:
        assert_close([x.detach() for x in wave_state(*inputs[1:], places)], expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_change_nothing() -> None:
    inputs = operands(SHAPES["one head for several threads"])
    results = []
    for count in (1, 3):
        with threads(count):
            results.append(with_gradients(attend, inputs, 1e-6))
    assert_close(*results, atol=1e-5, rtol=1e-5)


def test_other_operands_are_left_to_torch() -> None:
    q, k, v = (x.detach() for x in operands(SHAPES["several tiles"]))
    places = wave(128, 128)
    state, total = wave_state(k, v, places)
    assert sums_up(k, v, places)
    assert not sums_up(k.double(), v.double(), places.double())
    assert not sums_up(k[..., :8], v, places)
    assert not sums_up(k, v[:, :0], places)
    assert not sums_up(k, v[:, :64], places)
    assert not sums_up(k, v, places[:64])
    assert not sums_up(k, v, places.double())
    with torch.autocast("cpu"):
        assert not sums_up(k, v, places)
    assert reads(q, places[:96], state, total)
    assert not reads(q, places, state, total)
    assert not reads(q[..., :16], places[:96], state, total)
    assert not reads(q, places[:96], state, total[:1])
    assert not reads(q, places[:96], state[:, :1], total)
    assert not reads(q, places[:96], state[..., :16], total)
