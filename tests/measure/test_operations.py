"""The operation counter: single operators by hand, torch's own counter, codes, modules, every mechanism."""

import contextlib
import logging
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention.cells import declared, first_of_each_class
from conftest import encoders, made, mechanisms
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from subquad.attention.ecoformer import EcoFormer
from subquad.attention.softmax import Softmax
from subquad.backbones.encoder import sized
from subquad.backbones.language import LanguageModel
from subquad.backbones.mcan import MCAN
from subquad.backbones.sequence import SequenceEncoder
from subquad.backbones.vision import ViT
from subquad.config.compose import load_factory
from subquad.measure import operations
from subquad.measure.aten import Tally
from subquad.measure.inputs import network_inputs
from subquad.measure.operations import OperationCounter, by_group, count
from subquad.ops.binary_codes import code
from subquad.specs import DataSpec, ImageSpec, Masks, Pattern, Site, TextSpec, VQASpec
from subquad.utils.errors import UserError

A, B = torch.randn(3, 4), torch.randn(4, 5)
X = torch.randn(2, 6, 8)
Z = torch.complex(A, A)
IMAGE, KERNEL, BIAS = torch.randn(1, 4, 5, 7), torch.randn(6, 2, 3, 3), torch.randn(6)
SIGNAL, STENCIL = torch.randn(2, 3, 5), torch.randn(3, 4, 2)
LINEAR, LAYER_NORM, BATCH_NORM = nn.Linear(8, 3), nn.LayerNorm(8), nn.BatchNorm1d(6).eval()

COSTS = {
    "product": (lambda: A @ B, (60, 60, 0)),
    "matrix times vector": (lambda: A @ B[:, 0], (12, 12, 0)),
    "product and bias": (lambda: torch.addmm(B[0], A, B), (60, 75, 0)),
    "scaled product and bias": (lambda: torch.addmm(B[0], A, B, alpha=2), (75, 75, 0)),
    "batched product": (lambda: X @ X.mT, (576, 576, 0)),
    "linear map": (lambda: LINEAR(X), (288, 324, 0)),
    "convolution in groups": (lambda: F.conv2d(IMAGE, KERNEL, padding=1, groups=2), (6 * 35 * 18, 6 * 35 * 18, 0)),
    "its bias": (lambda: F.conv2d(IMAGE, KERNEL, BIAS, padding=1, groups=2), (6 * 35 * 18, 6 * 35 * 19, 0)),
    "transposed convolution": (
        lambda: F.conv_transpose1d(SIGNAL, STENCIL), (240, 240, 0),
    ),
    "sum": (lambda: X.sum(-1), (0, 96, 0)),
    "mean": (lambda: X.mean(-1), (0, 96, 12)),
    "norm": (lambda: torch.linalg.vector_norm(X, dim=-1), (96, 96, 12)),
    "softmax": (lambda: X.softmax(-1), (0, 192, 288)),
    "logarithm of it": (lambda: X.log_softmax(-1), (0, 288, 192)),
    "logsumexp": (lambda: X.logsumexp(-1), (0, 192, 204)),
    "LayerNorm": (lambda: LAYER_NORM(X), (288, 384 + 12, 36)),
    "LayerNorm without weights": (lambda: F.layer_norm(X, (8,)), (192, 288 + 12, 36)),
    "BatchNorm in evaluation": (lambda: BATCH_NORM(X), (96, 192 + 6, 12)),
    "elementwise": (lambda: (A * A + A).exp_() / 2, (12, 12, 24)),
    "scaled sum": (lambda: torch.add(A, A, alpha=3), (12, 12, 0)),
    "powers": (lambda: A.pow(3) + A.abs().sqrt(), (24, 12, 12)),
    "complex product": (lambda: Z * Z, (48, 24, 0)),
    "products of complex matrices": (lambda: (Z @ Z.mT, torch.addmm(Z[:, :3], Z, Z.mT)), (288, 306, 0)),
    "sum of complex numbers": (lambda: Z.sum(), (0, 24, 0)),
    "comparisons": (lambda: (A > 0, A.relu(), A.clamp(0, 1), A.amax(1)), (0, 0, 12 + 12 + 24 + 12)),
    "GELU": (lambda: F.gelu(A), (36, 12, 12)),
    "length and direction of complex numbers": (lambda: (Z.abs(), Z.sgn()), (48, 24, 48)),
    "gated linear unit": (lambda: F.glu(A), (6, 0, 6)),
    "sorting": (lambda: A.sort(-1), (0, 0, 24)),
    "sorting along another axis": (lambda: X.argsort(dim=1), (0, 0, 96 * 3)),
    "the two largest": (lambda: A.topk(2), (0, 0, 24)),
    "Fourier transform": (lambda: torch.fft.rfft(X), (96 * 3, 144 * 3, 0)),
    "complex Fourier transform": (lambda: torch.fft.fft(X.to(torch.complex64)), (192 * 3, 288 * 3, 0)),
    "sums into places": (lambda: A.index_add(0, torch.tensor([0, 0]), A[:2]), (0, 8, 0)),
    "written and added": (
        lambda: A.clone().index_put_((torch.tensor([0, 0]),), A[:2], accumulate=True), (0, 8, 0),
    ),
    "written": (lambda: A.clone().index_put_((torch.tensor([0, 1]),), A[:2]), (0, 0, 0)),
    "indices": (lambda: torch.ones(6, dtype=torch.long) * 2 + 1, (0, 0, 12)),
    "moving": (lambda: torch.cat([A.mT.flatten(), A.repeat(2, 1).flatten()]).clone()[None], (0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTS)
def test_single_operators(name):
    run, cost = COSTS[name]
    with torch.no_grad(), OperationCounter() as counter:
        run()
    assert counter.operations.total == Tally(*cost)
    assert not counter.operations.unknown


@pytest.mark.parametrize("masked", [False, True])
def test_the_fused_kernel_counts_what_it_hides(masked):
    n, m, e, h = 5, 7, 4, 2
    q, k = torch.randn(1, h, n, e), torch.randn(1, h, m, e)
    mask = torch.randn(n, m) if masked else None
    with OperationCounter() as counter:
        F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
    logits, weights, scale = h * n * m * e, h * n * m * e, h * n * m
    softmax = Tally(add=2 * h * n * m, other=3 * h * n * m)
    wanted = Tally(logits + weights + scale, logits + weights + masked * scale) + softmax
    assert counter.operations.total == wanted
    assert list(counter.operations.operators) == ["_scaled_dot_product_flash_attention_for_cpu"]


def test_gradients_of_convolutions_agree_with_torchs_counter():
    x, kernel = torch.randn(2, 4, 9, 7, requires_grad=True), torch.randn(6, 4, 3, 3, requires_grad=True)
    with FlopCounterMode(display=False) as known, OperationCounter() as ours:
        F.conv2d(x, kernel, padding=1).backward(torch.ones(2, 6, 9, 7))
    assert ours.operations.total.mul * 2 == known.get_total_flops()
    grouped = torch.randn(6, 1, 3, 3, requires_grad=True)
    with OperationCounter() as counter:
        y = F.conv2d(torch.cat([x, x], 1)[:, :6], grouped, groups=6)
    forward = counter.operations.total.mul
    with OperationCounter() as counter:
        y.backward(torch.ones_like(y))
    assert counter.operations.operators["convolution_backward"].mul == 2 * forward


def test_an_lstm_by_hand():
    steps, inputs, width = 7, 5, 6
    lstm, x = nn.LSTM(inputs, width, batch_first=True), torch.randn(3, steps, inputs)
    maps = 4 * width * (inputs + width)
    gates = Tally(mul=maps, add=maps + 2 * 4 * width)
    cell = Tally(mul=3 * width, add=width, other=(3 + 1 + 1) * width)
    assert count(lstm, (x,)).total == 3 * steps * (gates + cell)
    both = count(lstm, (x,), backward=True)
    assert not both.unknown
    assert 3 * steps * 3 * maps < both.total.mul < 3 * steps * 3 * (maps + 20 * width)


def test_a_triangular_system_by_hand():
    rows, columns = 5, 3
    lower, x = torch.ones(2, rows, rows), torch.ones(2, rows, columns)
    with OperationCounter() as counter:
        torch.linalg.solve_triangular(lower, x, upper=False, unitriangular=True)
    each = rows * (rows - 1) // 2 * columns
    assert counter.operations.total == Tally(mul=2 * each, add=2 * each)


def layer(name, length=48, dim=16, heads=2):
    factory = made("attention", name)
    if "scales" in factory.keywords and factory.keywords["scales"] is None:
        factory = partial(factory, scales=2)
    pattern = Pattern.SELF if Pattern.SELF in declared(factory) else Pattern.CROSS
    grid = (6, 8) if length == 48 else None
    site = Site(pattern=pattern, dim=dim, heads=heads, query_len=length, context_len=length, grid=grid)
    x = torch.randn(2, length, dim)
    return factory(site=site).eval(), (x, x, Masks())


@pytest.mark.parametrize("name", mechanisms())
def test_products_agree_with_torchs_counter(name, monkeypatch):
    """Multiplications of every operator that FlopCounterMode knows, forward and backward, on numbers.

    FlopCounterMode omits factors of a product, and ignores the groups of a convolution in its backward pass.
    """
    monkeypatch.setattr(operations, "observe_codes", lambda _: contextlib.nullcontext())  # as FlopCounterMode
    attention, inputs = layer(name)
    with FlopCounterMode(display=False) as known, OperationCounter() as ours:
        y, _ = attention(*inputs)
        if y.requires_grad:
            y.sum().backward()
    results = ours.operations.operators
    for operator, flops in known.get_flop_counts().get("Global", {}).items():
        mul = results[operator.__name__].mul
        if operator is torch.ops.aten.baddbmm:
            assert flops <= 2 * mul <= 1.2 * flops
        elif operator is not torch.ops.aten.convolution_backward:
            assert 2 * mul == flops, operator
    assert not ours.operations.unknown


FIRST = first_of_each_class({name: made("attention", name) for name in mechanisms()})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.release] * (name not in FIRST)) for name in mechanisms()]
)
def test_every_mechanism_is_counted_in_full_without_computing(name):
    """Fake and real tensors give the same counts, and no operator is unknown."""
    attention, inputs = layer(name)
    fake = count(attention, inputs)
    with torch.no_grad(), OperationCounter() as counter:
        attention(*inputs)
    assert fake.modules == counter.operations.modules
    assert not fake.unknown
    assert fake.total.add > 0
    assert fake.total.other >= 0
    backward = count(attention, inputs, backward=True)
    assert not backward.unknown
    assert backward.total.add > fake.total.add
    assert all(p.device.type == "cpu" and p.grad is None for p in attention.parameters())


@pytest.mark.parametrize("name", encoders())
def test_every_encoder_is_counted_in_full(name):
    sizes = {"dim": 16, "heads": 2, "ffn": 24}
    encoder = sized(load_factory(f"backbone={name}"), **sizes)(spec=DataSpec(max_len=32, vocab=9, classes=3))
    tokens = torch.ones(2, 32, dtype=torch.long)
    forward = count(encoder.eval(), (tokens, None))
    both = count(encoder, (tokens, None), backward=True)
    assert not forward.unknown
    assert not both.unknown
    assert both.total.mul > 2 * forward.total.mul > 0


def test_networks_are_counted_in_full():
    image = ViT(ImageSpec(side=16, channels=3, classes=5), Softmax, 1, 16, 2, 24, patch=4)
    spec = VQASpec(image_len=6, image_dim=7, text_len=5, classes=4, vocab=11)
    vqa = MCAN(spec, Softmax, Softmax, layers=1, dim=16, heads=2, ffn=24)
    for network, data in ((image, ImageSpec(side=16, channels=3, classes=5)), (vqa, spec)):
        results = count(network.eval(), network_inputs(network, data, 2), backward=True)
        assert not results.unknown
        assert results.total.mul > 0


def test_backward_takes_about_twice_the_forward_pass():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    x = torch.randn(10, 8)
    forward, both = count(model, (x,)), count(model, (x,), backward=True)
    products = 10 * (8 * 16 + 16 * 4)
    assert forward.total == Tally(products, products + 10 * (16 + 4))
    # of the weights and of the inputs; the biases' gradients are sums over the rows
    assert both.total == Tally(3 * products, 3 * products + 2 * 10 * (16 + 4))
    assert both.below("1").mul == 3 * 10 * 16 * 4


def test_modules_add_up_and_shared_ones_count_each_time():
    spec = DataSpec(max_len=12, vocab=7, classes=3)
    tokens = torch.ones(2, 12, dtype=torch.long)
    one = SequenceEncoder(spec, Softmax, 1, 16, 2, 24)
    tied = SequenceEncoder(spec, Softmax, 3, 16, 2, 24, tie_layers=True)
    single, triple = count(one, (tokens, None)), count(tied, (tokens, None))
    assert triple.below("layers").mul == 3 * single.below("layers").mul
    assert single.below("").mul == single.total.mul
    assert single.below("layers.0.attention") + single.below("layers.0.feed_forward") != single.below("layers.0")
    groups = by_group(one, single)
    assert list(groups) == ["attention", "feed-forward", "norms", "rest"]
    assert sum(groups.values(), Tally()) == single.total
    assert groups["attention"] == single.below("layers.0.attention")
    assert groups["feed-forward"] == single.below("layers.0.feed_forward")
    assert sum(single.operators.values(), Tally()) == single.total


def test_products_with_codes_are_additions():
    x = torch.randn(6, 4)
    h = torch.where(x > 0, 1.0, -1.0)
    for run, cost in (
        (lambda h: h.mT @ x, (0, 96, 0)),
        (lambda h: x.mT @ h, (0, 96, 0)),
        (lambda h: torch.addmm(x[:4], h.mT, x), (0, 112, 0)),
        (lambda h: F.pad(h, (0, 1), value=1.0).mT @ x, (0, 120, 0)),
        (lambda h: h * x, (0, 0, 0)),
        (lambda h: (h * x).mT @ x, (96, 96, 0)),
        (lambda h: (h * x[:, :1]).mT @ x, (24, 96, 0)),
        (lambda h: (h / 3).mT @ x, (0, 96, 24)),
        (lambda h: (x / h).mT @ x, (96, 96, 24)),
        (lambda h: (h + 1).mT @ x, (96, 120, 0)),
        (lambda h: h.clone().add_(1).mT @ x, (96, 120, 0)),
        (lambda h: h.clone().copy_(x).mT @ x, (96, 96, 0)),
    ):
        with OperationCounter() as counter:
            run(code(h))
        assert counter.operations.total == Tally(*cost)
    with OperationCounter() as counter:
        h.mT @ x
    assert counter.operations.total.mul == 96  # marked outside the block


def test_codes_save_multiplications_of_ecoformer():
    site = Site(pattern=Pattern.SELF, dim=16, heads=2, query_len=40, context_len=40)
    attention, x = EcoFormer(site).eval(), torch.randn(1, 40, 16)
    results = count(attention, (x, x, Masks())).total
    assert results.mul < 0.85 * results.add


def test_an_operator_that_nobody_knows_is_named(caplog):
    with caplog.at_level(logging.WARNING), OperationCounter() as counter:
        torch.special.bessel_j0(A)
    assert counter.operations.unknown == {"special_bessel_j0"}
    assert "special_bessel_j0" in caplog.text
    assert counter.operations.total == Tally()


def test_size_costs_nothing():
    with torch.device("meta"):
        model = SequenceEncoder(DataSpec(max_len=65536, vocab=257, classes=2), Softmax, 1, 512, 8, 2048)
        tokens = torch.ones(4, 65536, dtype=torch.long)
    results = count(model, (tokens, None))
    assert results.below("layers.0.attention").mul > 4 * 65536**2 * 2 * 512


def test_weights_are_put_back_after_an_error():
    attention, (x, _, masks) = layer("linformer")
    weight = attention.projections.query.weight
    with pytest.raises(UserError):
        count(attention, (x.repeat(1, 2, 1), x.repeat(1, 2, 1), masks))
    assert attention.projections.query.weight is weight


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model.b.weight = model.a.weight
    model.forward = lambda x: model.b(model.a(x))
    count(model, (torch.randn(2, 3),), backward=True)
    assert model.a.weight is model.b.weight


def test_what_cannot_be_counted_is_refused():
    attention, inputs = layer("softmax")
    with pytest.raises(UserError, match="choose everything or published"):
        count(attention, inputs, "some")
    with pytest.raises(UserError, match="forward passes only"):
        count(attention, inputs, "published", backward=True)
    attention, inputs = layer("luna")
    with pytest.raises(UserError, match="no count for Luna"):
        count(attention, inputs, "published")
    crossing = Softmax(Site(pattern=Pattern.CROSS, dim=8, heads=2, query_len=9, context_len=3))
    with pytest.raises(UserError, match="counts self-attention only"):
        count(crossing, (torch.zeros(1, 9, 8), torch.zeros(1, 3, 8), Masks()), "published")
    spec = TextSpec(max_len=9, vocab=9, tokenizer="0")
    model = LanguageModel(spec, Softmax, 8, layers=1, heads=2, ffn=8)
    with pytest.raises(UserError, match="depends on the data"):
        network_inputs(model, spec)


def test_large_maps_through_onednn_cost_the_same():
    small, large = nn.Linear(256, 256), nn.Linear(256, 256)
    from subquad.attention.base import Affine

    fused = Affine(256, 256)
    x = torch.randn(1, 512, 256)
    assert math.prod(x.shape) * 256 >= 1 << 24
    plain, ours = count(small, (x,)), count(fused, (x,))
    assert plain.total == ours.total == count(large, (x,)).total
    with torch.no_grad(), OperationCounter() as counter:
        fused(x, "relu")
    assert counter.operations.total == ours.total + Tally(other=512 * 256)
