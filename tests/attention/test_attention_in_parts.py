"""Softmax attention with dropout in parts, beside all weights at once with the same weights dropped."""

import math
from contextlib import nullcontext

import pytest
import torch
from hydra.utils import instantiate
from kernels.checks import threads, with_gradients
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

from subquad.config.compose import compose_run
from subquad.kernels.build import torchs_own
from subquad.kernels.dropout_kernel import random_bits_at, threshold
from subquad.measure.inputs import random_batch
from subquad.measure.memory import LiveTensors
from subquad.ops import attention_in_parts as module
from subquad.ops.attention_in_parts import divides
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import DataSpec
from subquad.utils.errors import UserError

B, H, N, M, E = 2, 3, 70, 304, 12
SIZES = [1 << 20, N * M, H * N * M, 64 * M]
"""Weights of a part: all, those of a head, those of a row, those of 64 queries of a head."""


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 100)


def tensors(dtype: torch.dtype = torch.double, values: int = 20) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((N, H, E), (M, H, E), (M, H, values))
    made = [torch.randn(B, *s, generator=generator, dtype=torch.double).transpose(1, 2) for s in shapes]
    return [x.to(dtype).requires_grad_() for x in made]


def masks() -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    some = torch.rand(B, H, N, M, generator=generator) < 0.6
    some[0, 1, 3] = False
    numbers = torch.randn(N, M, generator=generator)
    return {
        "none": None,
        "padding, one row without keys": (torch.arange(M) < torch.tensor([0, 200])[:, None])[:, None, None],
        "each query, one without keys": torch.ones(N, M, dtype=torch.bool).tril(-1),
        "each head": some[:1, :, :1],
        "each": some,
        "added": numbers,
        "added, some hidden": numbers.masked_fill(~some[0, 0], -math.inf),
    }


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, seed: int = 3, p: float = 0.3) -> Tensor:
    torch.manual_seed(seed)
    return softmax_attention(q, k, v, mask, p, 0.3)


def at_once(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, seed: int = 3, p: float = 0.3) -> Tensor:
    torch.manual_seed(seed)
    logits = (q @ k.mT) * 0.3
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    top = logits.amax(-1, keepdim=True).detach().clamp(min=-1e300)
    weights = (logits - top).exp()
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    least, share = threshold(p)
    bits = random_bits_at(int(torch.randint(2**62, ())), 0, weights.numel())
    return (weights * (bits >= least).view(weights.shape) * share) @ v


@pytest.mark.parametrize("mask", masks())
def test_equals_all_weights_at_once_in_values_and_gradients(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = masks()[mask]
    want = with_gradients(at_once, tensors(), shown)
    for size in SIZES:
        monkeypatch.setattr(module, "WEIGHTS", size)
        assert_close(with_gradients(attend, tensors(), shown), want)
        for kernel in (nullcontext, torchs_own):
            with kernel():
                single = with_gradients(attend, tensors(torch.float), shown)
            assert_close([x.double() for x in single], want, atol=2e-5, rtol=1e-5)


def test_keys_of_all_rows_and_keys_in_several_tensors() -> None:
    q, k, v = tensors()
    k, v = (x[:1].detach().requires_grad_() for x in (k, v))
    in_parts = with_gradients(lambda q, k, v: attend(q, k.split([100, 204], 2), v.split([100, 204], 2)), [q, k, v])
    assert_close(in_parts, with_gradients(at_once, [q, k, v]))


@pytest.mark.parametrize("dtype", [torch.double, torch.float, torch.bfloat16])
def test_drops_the_same_weights_in_parts_of_any_size(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = (x.detach() for x in tensors(dtype))
    v = torch.eye(M, dtype=dtype).expand(B, H, -1, -1)  # the output is the weights
    kept = at_once(*(x.double() for x in (q, k, v))) > 0
    for size in SIZES:
        monkeypatch.setattr(module, "WEIGHTS", size)
        with threads(3 if size == SIZES[-1] else 1):
            assert torch.equal(attend(q, k, v) > 0, kept)


def test_weights_are_dropped_independently_and_the_mean_stays() -> None:
    q, k, _ = (x.detach() for x in tensors())
    v = torch.eye(M, dtype=torch.double).expand(B, H, -1, -1)
    weights = ((q @ k.mT) * 0.3).softmax(-1)
    ratios = attend(q, k, v) / weights
    kept = (ratios > 0).double()
    assert_close(ratios[ratios > 0], torch.full_like(ratios[ratios > 0], threshold(0.3)[1]))
    error = (0.3 * 0.7 / kept.numel()) ** 0.5
    assert abs(kept.mean() - 0.7) < 4 * error
    assert abs(ratios.mean() - 1) < 4 * error / 0.7
    centred = kept - 0.7
    for axis in range(4):  # neighbours in each axis are uncorrelated
        product = centred * centred.roll(1, axis)
        assert abs(product.mean()) < 4 * 0.3 * 0.7 / kept.numel() ** 0.5
    draws = torch.stack([attend(*(x.detach() for x in tensors()), seed=seed) for seed in range(60)])
    want = weights @ tensors()[2]
    assert ((draws.mean(0) - want) / (draws.std(0) / 60**0.5)).square().mean().sub(1).abs() < 0.15


def test_the_seed_decides() -> None:
    inputs = tensors(torch.float)
    first, again, other = (with_gradients(attend, inputs, None, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float, torch.double, torch.bfloat16])
@pytest.mark.slow
def test_memory_is_linear(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WEIGHTS", 1 << 14)

    def peak(tokens: int) -> int:
        inputs = [torch.randn(1, 2, tokens, 16, dtype=dtype, requires_grad=True) for _ in range(3)]
        mask = torch.ones(1, 1, 1, tokens, dtype=torch.bool)
        with LiveTensors() as memory:
            softmax_attention(*inputs, mask, 0.1).sum().backward()
        return memory.peak

    few, many = peak(1000), peak(2000)
    assert many < 2.2 * few
    assert many < 2 * 2000 * 2000  # a byte for each weight


@pytest.mark.slow
def test_a_step_of_64_long_series_takes_less_than_4_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of softmax in Table 3 of DBA on SelfRegulationSCP2; all weights at once took 20 GiB."""
    monkeypatch.undo()
    config = compose_run(["recipe=dba_series", "task=uea/self_regulation_scp2", "attention=softmax"])
    task = instantiate(config.task.module, _convert_="all")(spec=DataSpec(max_len=1152, channels=7, classes=2))
    batch = random_batch(task.network, DataSpec(max_len=1152, channels=7, classes=2), 2)
    with LiveTensors() as memory:
        task.loss(task(batch), task.targets(batch)).backward()
    assert config.data.batch_size // 2 * memory.peak < 4 << 30


def test_what_is_hidden_has_no_effect_however_large() -> None:
    q, k, v = (x.detach() for x in tensors())
    mask = masks()["padding, one row without keys"]
    before = attend(q, k, v, mask)
    k[1, :, 200:], v[1, :, 200:] = 1e30, float("nan")
    assert torch.equal(attend(q, k, v, mask), before)


def test_numbers_that_are_none_are_passed_on() -> None:
    for dtype in (torch.double, torch.float):
        q, k, v = (x.detach() for x in tensors(dtype))
        q[0, 0, 0, 0] = float("nan")
        y = attend(q, k, v)
        assert y[0, 0, 0].isnan().all()
        assert y[0, 0, 1:].isfinite().all()


@pytest.mark.parametrize("given", [torch.float, torch.bfloat16])
def test_autocast_gives_its_type_and_the_gradients_of_what_was_given(given: torch.dtype) -> None:
    inputs = tensors(given)
    with torch.autocast("cpu", torch.bfloat16):
        got = with_gradients(attend, inputs)
    assert [x.dtype for x in got] == [torch.bfloat16, given, given, given]
    want = with_gradients(at_once, [x.detach().double().requires_grad_() for x in inputs])
    assert_close([x.double() for x in got], want, atol=0.02, rtol=0.02)


def test_a_second_derivative_is_refused_in_one_sentence() -> None:
    inputs = tensors()
    with pytest.raises(UserError, match="plain_operators"):
        torch.autograd.grad(attend(*inputs).sum(), inputs[0], create_graph=True)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # of torch itself
def test_what_differentiates_otherwise_takes_all_weights_at_once() -> None:
    q, k, v = (x.detach() for x in tensors())
    assert divides(q, [k], [v], None, 0.3)

    def transformed(q: Tensor) -> Tensor:
        assert not divides(q, [k], [v], None, 0.3)
        return q.sum()

    torch.func.grad(transformed)(q)
    torch.compile(transformed, backend="aot_eager", fullgraph=True)(q)
    learned = torch.zeros(N, M, dtype=torch.double, requires_grad=True)
    assert not divides(q, [k], [v], learned, 0.3)
    assert torch.autograd.grad(attend(q, k, v, learned).sum(), learned)[0].any()
    with forward_ad.dual_level():
        assert not divides(forward_ad.make_dual(q, q), [k], [v], None, 0.3)


@pytest.mark.parametrize(
    ("rows", "heads", "tokens"), [(64, 16, 315), (64, 8, 206), (15, 8, 640), (64, 8, 405)],
    ids=["UWaveGestureLibrary", "Epilepsy", "AtrialFibrillation", "Heartbeat"],
)  # fmt: skip
def test_steps_of_kept_runs_are_not_divided(rows: int, heads: int, tokens: int, monkeypatch) -> None:
    """Their numbers are repeated to the bit."""
    monkeypatch.undo()
    x = torch.zeros(()).expand(rows, heads, tokens, E)
    assert not divides(x, [x], [x], None, 0.1)
    longer = torch.zeros(()).expand(12, heads, 2500, E)
    assert divides(longer, [longer], [longer], None, 0.1)


def test_whole_numbers_are_no_mask() -> None:
    q, k, v = (x.detach() for x in tensors())
    with pytest.raises(RuntimeError, match="attn_mask dtype"):
        attend(q, k, v, torch.ones(1, 1, 1, k.shape[2], dtype=torch.long))
