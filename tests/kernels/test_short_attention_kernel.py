"""The kernel for few keys, compared with explicit softmax in double precision."""

import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from kernels.checks import needs, threads, with_gradients
from subquad.kernels import short_attention_kernel as kernel
from subquad.kernels.build import torchs_own
from subquad.kernels.short_attention_kernel import MOST_KEYS
from subquad.ops.softmax_attention import softmax_attention

pytestmark = needs("short_attention")

SHAPES = {  # batch, heads, queries, keys, features, channels
    "a window": (4, 2, 64, 128, 64, 64),
    "tiles of queries, the last one odd": (2, 2, 150, 40, 32, 32),
    "few of all": (3, 2, 5, 3, 16, 48),
    "one query and one key": (2, 1, 1, 1, 16, 16),
    "many keys": (1, 2, 70, MOST_KEYS, 16, 80),
    "one head for several threads": (1, 1, 300, 33, 48, 16),
}


def short_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    return kernel.short_attention(q, [k], [v], seen, scale)


def in_two_parts(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """The first third of the keys, then the others."""
    sizes = (k.shape[2] // 3, k.shape[2] - k.shape[2] // 3)
    return kernel.short_attention(q, k.split(sizes, 2), v.split(sizes, 2), seen, scale)


def takes(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> bool:
    return kernel.takes(q, [k], [v], seen)


def tensors(shape: tuple[int, ...], heads_first: bool = True) -> list[Tensor]:
    batch, heads, queries, keys, features, channels = shape
    torch.manual_seed(0)
    sizes = ((queries, features), (keys, features), (keys, channels))
    parts = [torch.randn(batch, heads, *s) if heads_first else torch.randn(batch, s[0], heads, s[1]) for s in sizes]
    return [(x if heads_first else x.transpose(1, 2)).requires_grad_() for x in parts]


def masks(shape: tuple[int, ...]) -> dict[str, Tensor | None]:
    batch, heads, queries, keys = shape[:4]
    generator = torch.Generator().manual_seed(1)
    some = torch.rand(batch, heads, queries, keys, generator=generator) < 0.6
    some[-1, 0, queries // 2] = False
    return {
        "all": None,
        "padding": some[:, :1, :1],
        "each head": some[:1, :, :1],
        "each query": some[:1, :1],
        "each": some,
        "each, queries side by side": some.mT.contiguous().mT,
        "nothing": torch.zeros(1, 1, 1, keys, dtype=torch.bool),
    }


def written_out(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    logits = q @ k.mT * scale
    if seen is None:
        return logits.softmax(-1) @ v
    weights = torch.where(seen, (logits - logits.amax(-1, keepdim=True)).exp(), 0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300) @ v


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("mask", masks((1,) * 4))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_softmax_written_out(shape: tuple[int, ...], mask: str, heads_first: bool) -> None:
    inputs, seen = tensors(shape, heads_first), masks(shape)[mask]
    assert takes(*inputs, seen)
    exact = with_gradients(written_out, [x.detach().double().requires_grad_() for x in inputs], seen, 0.3)
    for function in (short_attention, in_two_parts) if shape[3] >= 3 else (short_attention,):
        for got, want in zip(with_gradients(function, inputs, seen, 0.3), exact, strict=True):
            assert_close(got.double(), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", ["all", "padding", "each"])
@pytest.mark.parametrize("parts", [1, 2])
def test_drops_the_weights_that_torchs_operators_drop(parts: int, mask: str) -> None:
    shape = (2, 3, 130, 101, 16, 32)
    inputs, seen = tensors(shape), masks(shape)[mask]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)
        sizes = [101] if parts == 1 else [37, 64]
        return softmax_attention(q, k.split(sizes, 2), v.split(sizes, 2), seen, 0.3)

    with torch.profiler.profile() as profile:
        ours = with_gradients(attend, inputs)
    assert "subquad::short_attention_backward" in {event.name for event in profile.events()}
    assert len(ours) == 4
    with torchs_own():
        plain = with_gradients(attend, inputs)
    with torch.no_grad(), threads(3):
        assert_close(attend(*inputs), plain[0], atol=1e-5, rtol=1e-5)
    for got, want in zip(ours, plain, strict=True):
        assert_close(got, want, atol=2e-5, rtol=1e-5)


def test_large_logits_neither_overflow_nor_lose_their_order() -> None:
    q, k, v = tensors(SHAPES["a window"])
    ours = with_gradients(short_attention, [q, k, v], None, 20.0)
    exact = with_gradients(written_out, [x.detach().double().requires_grad_() for x in (q, k, v)], None, 20.0)
    for got, want in zip(ours, exact, strict=True):
        assert_close(got.double(), want, atol=0.1, rtol=1e-3)  # logits of some hundreds in single precision


def test_what_a_query_does_not_see_has_no_effect_at_all() -> None:
    shape = SHAPES["a window"]
    inputs, seen = [x.detach() for x in tensors(shape)], masks(shape)["padding"]
    before = short_attention(*inputs, seen, 0.3)
    hidden = ~seen.mT.expand_as(inputs[1])
    inputs[1][hidden], inputs[2][hidden] = float("nan"), 1e30
    assert torch.equal(short_attention(*inputs, seen, 0.3), before)


def test_where_nothing_is_seen_values_need_not_be_numbers() -> None:
    q, k, v = (x.detach() for x in tensors(SHAPES["few of all"]))
    nothing = torch.zeros(1, 1, 1, 3, dtype=torch.bool)
    assert torch.equal(
        short_attention(q, k, v + float("nan"), nothing, 1.0),
        torch.zeros(3, 2, 5, 48),
    )


def test_numbers_that_are_none_are_passed_on() -> None:
    q, k, v = (x.detach() for x in tensors(SHAPES["few of all"]))
    q[0, 0, 0, 0] = float("nan")
    y = short_attention(q, k, v, None, 1.0)
    assert y[0, 0, 0].isnan().all()
    assert y[0, 0, 1:].isfinite().all()
    for seen in ([True, True, False], [True, False, False], [False, True, True]):
        y = short_attention(q, k, v, torch.tensor(seen)[None, None, None], 1.0)
        assert y[0, 0, 0].isnan().all()
        assert y[0, 0, 1:].isfinite().all()
    k[0, 0, 1] = float("nan")
    assert short_attention(q, k, v, torch.tensor([True, True, False])[None, None, None], 1.0)[0, 0].isnan().all()


def test_overlapping_windows_and_columns_of_wider_rows_are_read_where_they_lie() -> None:
    rows = torch.randn(1, 200, 96)
    windows = rows[..., 16:48].unfold(1, 72, 32).mT[0, :, None]  # [5, 1, 72, 32], a view
    q = torch.randn(5, 1, 32, 32)
    assert_close(
        short_attention(q, windows, windows, None, 0.2), F.scaled_dot_product_attention(q, windows, windows, scale=0.2)
    )
    turned = torch.randn(5, 1, 32, 72).mT  # its last axis is not contiguous
    assert_close(
        short_attention(q, turned, turned, None, 0.2), F.scaled_dot_product_attention(q, turned, turned, scale=0.2)
    )


def test_the_result_lies_as_the_output_map_reads_it() -> None:
    assert short_attention(*tensors(SHAPES["a window"]), None, 1.0).transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q.double(), k.double(), v.double(), None),
        lambda q, k, v: (q.bfloat16(), k.bfloat16(), v.bfloat16(), None),
        lambda q, k, v: (q[..., :8], k[..., :8], v, None),
        lambda q, k, v: (q, k, v[..., :8], None),
        lambda q, k, v: (q[0], k[0], v[0], None),
        lambda q, k, v: (q, k[:1], v[:1], None),
        lambda q, k, v: (q, k, v[:, :, :64], None),
        lambda q, k, v: (q, k[..., :32], v, None),
        lambda q, k, v: (q[:, :, :0], k, v, None),
        lambda q, k, v: (q, k[:, :, :0], v[:, :, :0], None),
        lambda q, k, v: (q, k.repeat(1, 1, 9, 1), v.repeat(1, 1, 9, 1), None),
        lambda q, k, v: (q, k, v, torch.zeros(64, 128)[None, None]),
        lambda q, k, v: (q, k, v, torch.ones(64, 128, dtype=torch.bool)),
    ],
)
def test_other_operands_are_left_to_torch(change) -> None:
    inputs = [x.detach() for x in tensors(SHAPES["a window"])]
    assert takes(*inputs, None)
    assert not takes(*change(*inputs))


def test_who_asks_for_torchs_own_gets_it() -> None:
    inputs = tensors(SHAPES["a window"])
    with torchs_own():
        assert not takes(*inputs, None)
    assert takes(*inputs, None)


def test_who_watches_operators_sees_torchs_own() -> None:
    inputs = tensors(SHAPES["a window"])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert not takes(*inputs, None)
    with torch.autocast("cpu"):
        assert not takes(*inputs, None)
    with torch.overrides.BaseTorchFunctionMode():
        assert not takes(*inputs, None)
    with FlopCounterMode(display=False):
        assert not takes(*inputs, None)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert not takes(*(mode.from_tensor(x) for x in inputs), None)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # of torch itself
def test_what_differentiates_otherwise_gets_torchs_own() -> None:
    q, k, v = (x.detach() for x in tensors(SHAPES["a window"]))
    slope = torch.func.grad(lambda q: softmax_attention(q, k, v).sin().sum())(q)
    [expected] = torch.autograd.grad(softmax_attention(q.requires_grad_(), k, v).sin().sum(), q)
    assert_close(slope, expected, atol=1e-5, rtol=1e-5)
    q = q.detach()
    with forward_ad.dual_level():
        assert not takes(forward_ad.make_dual(q, torch.ones_like(q)), k, v, None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_precision_changes_nothing(dtype: torch.dtype) -> None:
    inputs = tensors(SHAPES["a window"])
    expected = with_gradients(short_attention, inputs, None, 0.3)
    torch.set_default_dtype(dtype)
    try:
        gradient = torch.randn(4, 2, 64, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float32)
        y = short_attention(*inputs, None, 0.3)
        found = [y.detach(), *torch.autograd.grad(y, inputs, gradient)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert_close(found, expected)


def test_gradients_of_views_whose_rows_overlap() -> None:
    q, line = torch.randn(1, 1, 20, 16), torch.randn(1, 1, 18)

    def attend(line: Tensor) -> Tensor:
        k = line.unfold(-1, 16, 1)  # [1, 1, 3, 16], strides of 1 and 1
        return short_attention(q, k, k, None, 0.3)

    def plain(line: Tensor) -> Tensor:
        k = line.unfold(-1, 16, 1)
        return F.scaled_dot_product_attention(q, k, k, scale=0.3)

    inputs = [line.requires_grad_()]
    for got, want in zip(with_gradients(attend, inputs), with_gradients(plain, inputs), strict=True):
        assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_softmax_attention_runs_it_and_gives_the_same_without_it() -> None:
    inputs = tensors(SHAPES["a window"])
    with torch.profiler.profile() as profile:
        ours = with_gradients(softmax_attention, inputs)
    names = {event.name for event in profile.events()}
    assert {"subquad::short_attention", "subquad::short_attention_backward"} <= names
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = with_gradients(softmax_attention, inputs)
    for got, want in zip(ours, theirs, strict=True):
        assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_more_threads_than_heads_share_one_head() -> None:
    inputs = tensors(SHAPES["one head for several threads"])
    results = []
    for count in (1, 4):
        with threads(count):
            results.append(with_gradients(short_attention, inputs, None, 1 / math.sqrt(48)))
    for one, four in zip(*results, strict=True):
        assert_close(one, four, atol=1e-5, rtol=1e-5)


def test_parts_are_read_where_they_lie_and_have_gradients_of_their_own() -> None:
    q, own, values = tensors(SHAPES["a window"])
    shared = torch.randn(1, 2, 20, 64, requires_grad=True)  # the same for all blocks, a view
    inputs = [q, own, values, shared]

    def attend(q: Tensor, own: Tensor, values: Tensor, shared: Tensor) -> Tensor:
        first = shared.expand(4, -1, -1, -1)
        return softmax_attention(q, (first, own), (first.sin(), values))

    ours = with_gradients(attend, inputs)
    with torchs_own():
        theirs = with_gradients(attend, inputs)
    for got, want in zip(ours, theirs, strict=True):
        assert_close(got, want, atol=1e-4, rtol=1e-5)


def test_parts_that_do_not_belong_together_are_left_to_torch() -> None:
    q, k, v = (x.detach() for x in tensors(SHAPES["a window"]))
    assert kernel.takes(q, [k, k], [v, v], None)
    assert not kernel.takes(q, [k, k], [v], None)
    assert not kernel.takes(q, [k, k], [v, v[..., :16]], None)
    assert not kernel.takes(q, [k, k], [v, v[:, :, :5]], None)


def test_three_parts_are_left_to_torch() -> None:
    q, k, v = tensors(SHAPES["a window"])
    parts = [x.detach().split((50, 50, 28), 2) for x in (k, v)]
    assert not kernel.takes(q, *parts, None)
    assert_close(softmax_attention(q, *parts), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.slow
def test_off_in_a_process_of_its_own() -> None:
    program = (
        "import torch; from subquad.kernels.short_attention_kernel import takes; x = torch.randn(1, 1, 64, 64); "
        "print(takes(x, [x], [x], None))"
    )
    for word, answer in (("on", "True"), ("off", "False")):
        environment = {**os.environ, "SUBQUAD_KERNELS": word}
        said = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == answer
