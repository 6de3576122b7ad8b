"""Mechanisms with a sparse pattern of keys: masks, the path for GPUs, memory; and the functions for windows."""

import gc
import itertools
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from conftest import made, mechanisms
from reference import bigbird, local, longformer, pattern, pixelfly, sparse
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.testing import assert_close

from attention.cells import HEADS, prefix, shrunk
from attention.checks import LONGEST, agree, one, stack, tokens
from subquad.attention.base import Attention
from subquad.attention.bigbird import BigBird
from subquad.attention.local import Local
from subquad.attention.longformer import Longformer
from subquad.attention.pixelfly import PixelFly
from subquad.attention.sparse import Sparse
from subquad.backbones.encoder import class_of
from subquad.measure.memory import LiveTensors
from subquad.ops import block_sparse as sparse_ops
from subquad.ops import blocks
from subquad.ops.block_sparse import attend, sliding_window
from subquad.specs import Masks, Pattern, Site

PATTERNS: dict[str, tuple[type[Attention], Any, dict[str, Any]]] = {
    "local": (Local, local, {"window": 5, "blockwise": False}),
    "local_block": (Local, local, {"window": 5, "blockwise": True}),
    "sparse_fixed": (Sparse, sparse, {"form": "fixed", "block": 6, "summary": 2, "causal": False}),
    "sparse_strided": (Sparse, sparse, {"form": "strided", "block": 6, "summary": 2, "causal": False}),
    "sparse_fixed_causal": (Sparse, sparse, {"form": "fixed", "block": 6, "summary": 2, "causal": True}),
    "sparse_strided_causal": (Sparse, sparse, {"form": "strided", "block": 6, "summary": 2, "causal": True}),
    "longformer": (Longformer, longformer, {"window": 4, "global_tokens": 2}),
    "bigbird": (BigBird, bigbird, {"block": 3, "random_blocks": 2}),
    "pixelfly": (PixelFly, pixelfly, {"block": 3, "factors": 2, "global_blocks": 1}),
}

each_pattern = pytest.mark.parametrize("name", PATTERNS)


@each_pattern
def test_visible_is_the_printed_pattern(name: str) -> None:
    kind, reference, choices = PATTERNS[name]
    layer, places = one(partial(kind, **choices)), torch.arange(LONGEST)
    heads, of_bigbird = torch.arange(HEADS)[:, None, None], []
    if kind is BigBird:
        of_bigbird = [torch.tensor(12)]
        choices = {"block": 3, "random": layer.random.tolist(), "last": 12}
    want = pattern.grid(partial(reference.sees, **choices), HEADS, LONGEST)
    assert torch.equal(layer.visible(heads, places[:, None], places, *of_bigbird).expand_as(want), want)


@pytest.fixture
def on_gpu(unchecked: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs flex attention, not compiled, on a CPU; the list grows by one number for each block mask that is built."""
    built: list[int] = []
    for kind in {kind for kind, _, _ in PATTERNS.values()}:
        monkeypatch.setattr(f"{kind.__module__}.runs_flex", lambda *_: True)
    monkeypatch.setattr(sparse_ops, "create_block_mask", lambda *a, **k: built.append(1) or create_block_mask(*a, **k))
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)  # refuses gradients
    return built


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:The .grad attribute")
@pytest.mark.parametrize("lengths", ["37", "padded"])
@each_pattern
def test_the_path_of_a_gpu_equals_the_printed_form(name: str, lengths: str, on_gpu: list[int]) -> None:
    kind, reference, choices = PATTERNS[name]
    layers = stack(partial(kind, **choices), Pattern.SELF)
    agree(layers, partial(reference.layer, heads=HEADS, **({"block": 3} if kind is BigBird else choices)), lengths)
    assert on_gpu or (kind is BigBird and lengths == "padded")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:The .grad attribute")
@pytest.mark.slow
def test_block_masks_are_kept_for_each_length_and_with_the_layer(
    on_gpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(layer: Attention, *lengths: tuple[int, int | None]) -> int:
        on_gpu.clear()
        for longest, shortest in lengths:
            mask = None if shortest is None else prefix([longest, shortest], longest)
            x = tokens(2, longest, 24)
            with torch.inference_mode():
                layer(x, x, Masks(mask, mask))
        return len(on_gpu)

    layer = one(partial(Local, window=5))
    assert built(layer, (37, None), (37, None), (13, None), (37, 20), (37, 9), (13, None)) == 3
    assert built(one(partial(Local, window=7)), (37, None)) == 1  # another pattern
    x = tokens(2, 37, 24).requires_grad_()
    layer(x, x, Masks())[0].sum().backward()  # with a mask that was built in inference
    monkeypatch.setattr(sparse_ops, "MASKS_OF_A_LAYER", 3)
    assert built(layer, (9, None), (13, None), (37, None)) == 2  # the oldest one was replaced
    random = one(partial(BigBird, block=3, random_blocks=2))
    assert built(random, (37, None), (37, None)) == 1
    random.load_state_dict(random.state_dict())
    assert built(random, (37, None)) == 1
    del layer, random
    gc.collect()
    assert not sparse_ops._BLOCK_MASKS


def users_of_flex() -> dict[str, Any]:
    """The choices of attention whose module calls flex attention."""
    factories = {name: shrunk(made("attention", name)) for name in mechanisms()}
    return {name: make for name, make in factories.items() if hasattr(import_module(class_of(make).__module__), "flex")}


FLEXIBLE = {**users_of_flex(), **{name: partial(kind, **choices) for name, (kind, _, choices) in PATTERNS.items()}}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, of a Function
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FLEXIBLE)
def test_flex_compiles_as_on_a_gpu(name: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a backward pass, with blocks of 4 tokens instead of 128, so that there are many."""
    layer, x, mask = one(FLEXIBLE[name]), tokens(2, 37, 24), prefix([37, 20], 37)
    masks = Masks(mask, mask) if padded and not isinstance(layer, BigBird) else Masks()
    block_masks: list[Any] = []

    def both(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.reset()
        for make in (create_block_mask, torch.compile(create_block_mask, backend="eager")):
            block_masks.append(make(*args, **kwargs, BLOCK_SIZE=4))
        return block_masks[-1]

    def run(*args: Any, block_mask: BlockMask) -> Any:
        # A kernel applies no mask inside full blocks, and so would not see padding.
        assert masks.context is None or block_mask.full_kv_num_blocks is None
        return torch.compile(flex_attention, backend="eager")(*args, block_mask=block_mask)

    with torch.no_grad():
        blocked = layer(x, x, masks)[0]
        monkeypatch.setattr(f"{type(layer).__module__}.runs_flex", lambda *_: True)
        monkeypatch.setattr(sparse_ops, "create_block_mask", both)
        monkeypatch.setattr(sparse_ops, "flex_attention", run)
        assert_close(layer(x, x, masks)[0][mask], blocked[mask])
    plain, compiled = ([part for part in made.as_tuple() if isinstance(part, Tensor)] for made in block_masks[:2])
    assert len(plain[1].unique()) > 1  # indices of blocks
    assert_close(compiled, plain, rtol=0, atol=0)


def test_every_attention_that_uses_flex_is_among_the_patterns() -> None:
    assert {class_of(made("attention", name)) for name in users_of_flex()} == {kind for kind, _, _ in PATTERNS.values()}


@each_pattern
def test_dropout_acts_on_the_weights(name: str) -> None:
    kind, _, choices = PATTERNS[name]
    layer, x = one(partial(kind, **choices), dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(layer(x, x, Masks())[0], layer.eval()(x, x, Masks())[0])


def peak(factory: Callable[..., Attention], length: int, training: bool) -> int:
    """Peak memory in bytes of one call at width 256 with 4 heads, on fake tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        site = Site(pattern=Pattern.SELF, dim=256, heads=4, query_len=length, context_len=length)
        layer, x = factory(site=site), torch.randn(1, length, 256, requires_grad=training)
        with torch.set_grad_enabled(training), LiveTensors() as memory:
            y = layer(x, x, Masks())[0]
            if training:
                y.sum().backward()
    return memory.peak


@pytest.mark.parametrize("lengths", ["37", "padded"])
@pytest.mark.parametrize("name", ["bigbird", "pixelfly"])
def test_queries_in_parts_are_as_all_at_once(name: str, lengths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_ops, "QUERIES_AT_ONCE", 7)
    kind, reference, choices = PATTERNS[name]
    layers = stack(partial(kind, **choices), Pattern.SELF)
    choices = {"block": 3} if kind is BigBird else choices
    agree(layers, partial(reference.layer, heads=HEADS, **choices), lengths)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "name", ["local", "local_block", "sparse_fixed", "sparse_strided", "longformer", "bigbird", "pixelfly"]
)
def test_memory_is_a_tenth_of_written_out_softmax_at_8192_tokens(name: str, training: bool) -> None:
    assert peak(made("attention", name), 8192, training) < 0.1 * peak(
        made("attention", "softmax_explicit"), 8192, training
    )


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 0), (2, 7)])
def test_windows_of_keys_and_of_pooled_keys(before: int, after: int, stride: int, first: int, padded: bool) -> None:
    for batch, n in itertools.product((1, 3), (1, 13, 60)):
        m = -(-n // stride)
        q, k, v = tokens(batch, n, 8), tokens(batch, m, 8), tokens(batch, m, 12)
        mask = torch.rand(batch, m) < 0.6 if padded else None
        i, j = torch.arange(n)[:, None] // stride, torch.arange(m)
        seen = (((j >= i - before) & (j <= i + after)) | (j < first)).expand(batch, 1, n, m)
        seen = seen if mask is None else seen & mask[:, None, None]
        got = sliding_window(q, k, v, mask, heads=2, before=before, after=after, stride=stride, first=min(first, m))
        want = attend(q, k, v, seen, 2)
        assert_close(got, want)
        assert not got[~seen[:, 0].any(-1)].any()


@pytest.mark.parametrize(("size", "before", "after"), [(2, 3, 0), (3, 3, 3), (4, 1, 2), (5, 0, 0), (2, 0, 5)])
def test_gradients_of_windows(size: int, before: int, after: int) -> None:
    x = tokens(2, 9, 3).requires_grad_()
    assert gradcheck(lambda t: blocks.around(t, size, before, after), x)


def test_windows_of_one_row_are_views() -> None:
    x = tokens(1, 60, 8)
    with LiveTensors() as memory:
        blocks.around(x, 4, 8, 8)
    assert memory.peak < 1.4 * x.nbytes


def test_attend_is_softmax_over_what_is_seen() -> None:
    """In each head, with zeros for queries that see nothing."""
    q, k, v = tokens(2, 5, 8), tokens(2, 7, 8), tokens(2, 7, 8)
    seen = torch.rand(2, 1, 5, 7) < 0.5
    seen[0, 0, 3] = False
    want: list[Tensor] = []
    for row in range(2):
        heads = zip(q[row].chunk(2, 1), k[row].chunk(2, 1), v[row].chunk(2, 1), strict=True)
        logits = [(torch.where(seen[row, 0], a @ b.T / 2, -torch.inf).softmax(1).nan_to_num(), c) for a, b, c in heads]
        want.append(torch.cat([weights @ c for weights, c in logits], 1))
    assert_close(attend(q, k, v, seen, 2), torch.stack(want))
