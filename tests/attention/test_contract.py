"""The contract of attention/base.py, for every configs/attention/*.yaml in every wiring that it declares.

`pytest --attention my_package.module:MyClass` runs these tests, and only these, on a class of your own.
"""

import contextlib
import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.nn.utils.parametrize import register_parametrization
from torch.testing import assert_close

from attention.cells import CONTEXT, DIM, QUERIES, Cell, declared, prefix, run, site
from subquad.attention.base import (
    Attention,
    Carry,
    Discrete,
    StatelessAttention,
    SurrogateGradient,
    UnsupportedPattern,
)
from subquad.measure.cuda_autocast import rules_of_cuda
from subquad.ops import affine
from subquad.specs import UNKNOWN, Masks, Pattern
from subquad.utils.devices import as_on_a_gpu
from subquad.utils.errors import UserError

exactly = {"rtol": 0, "atol": 1e-10}


def real(y: Tensor, masks: Masks) -> Tensor:
    """The outputs at real tokens."""
    return y if masks.query is None else y[masks.query]


def cast(inputs: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x, context = inputs
    tokens = context.to(dtype)
    return (tokens if x is context else x.to(dtype)), tokens


def padded_with(size: float, x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask[..., None], x, size * torch.randn_like(x))


class SelfOnly(StatelessAttention):
    """A mechanism without a cross-attention form."""

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(1), memory O(1)"

    def attend(self, x: Tensor, context: Tensor, masks: Masks) -> Tensor:
        return x


def test_each_wiring_works_or_is_refused(factory: Callable[..., Attention]) -> None:
    """At the configured sizes; `cell` has smaller ones."""
    assert declared(factory)
    for pattern in Pattern:
        if pattern in declared(factory):
            x, context = Cell(factory, pattern).inputs()
            attention = Cell(factory, pattern).build()
            assert attention.site.pattern is pattern
            assert attention(x, context, Masks())[0].shape == x.shape
        else:
            with pytest.raises(UnsupportedPattern, match=f"{pattern.value}-attention"):
                factory(site=site(pattern))


def test_undeclared_wiring_is_refused_by_the_base_class() -> None:
    with pytest.raises(UnsupportedPattern, match="SelfOnly has no cross-attention form; it supports self-attention"):
        SelfOnly(site(Pattern.CROSS))


class Averaging(Attention):
    """Returns one token for a row, which a residual connection would add to every token."""

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n), memory O(n)"
    returned: Any = None

    def attend_with_carry(self, x: Tensor, context: Tensor, masks: Masks, carry: Carry) -> Any:
        return (x.mean(1, keepdim=True) if self.returned is None else self.returned), carry


def test_outputs_of_another_shape_are_refused() -> None:
    attention = Averaging(site(Pattern.SELF))
    with pytest.raises(UserError, match=r"Averaging returned \[2, 1, 24\] for tokens \[2, 5, 24\]"):
        attention(torch.randn(2, 5, DIM))
    attention.returned = ()
    with pytest.raises(UserError, match="Averaging returned a tuple for tokens"):
        attention(torch.randn(2, 5, DIM))


@pytest.mark.parametrize("shape", [(0, 5, DIM), (2, 0, DIM)])
def test_nothing_gives_nothing_and_every_weight_a_gradient_of_0(shape: tuple[int, ...]) -> None:
    attention, x = Averaging(site(Pattern.SELF)), torch.randn(shape, requires_grad=True)
    attention.weight = nn.Parameter(torch.ones(3))
    y = attention(x)
    y.sum().backward()
    assert y.shape == x.shape == x.grad.shape
    assert attention.weight.grad.tolist() == [0, 0, 0]


def test_shapes_are_checked_while_tests_run() -> None:
    with pytest.raises(TypeCheckError):
        SelfOnly(site(Pattern.SELF))(torch.zeros(3, DIM), torch.zeros(3, DIM), Masks())


def test_shapes_without_numbers(cell: Cell) -> None:
    """On the device "meta", as in `with torch.device("meta")`; costs are counted there."""
    layers, (x, context), masks = cell.stack(2).to("meta"), cell.inputs(), cell.masks()
    tokens = context.to("meta").requires_grad_()
    masks = Masks(*(None if mask is None else mask.to("meta") for mask in (masks.query, masks.context)))
    y = run(layers, tokens if x is context else x.to("meta"), tokens, masks)
    y.sum().backward()
    assert y.shape == x.shape
    assert tokens.grad.shape == context.shape


def test_padding_is_invisible(cell: Cell) -> None:
    layers, (x, context), masks = cell.stack(2).eval(), cell.inputs(), cell.masks()
    outputs = []
    for size in (0, 1e3):
        tokens = padded_with(size, context, masks.context)
        queries = tokens if x is context else padded_with(size, x, masks.query)
        outputs.append(real(run(layers, queries, tokens, masks), masks))
    assert_close(*outputs, **exactly)


def test_padded_equals_trimmed(cell: Cell) -> None:
    layers, (x, context), masks = cell.stack(2).eval(), cell.inputs(), cell.masks()
    whole = run(layers, x, context, masks)
    for i, (n, m) in enumerate(zip(masks.query.sum(1), masks.context.sum(1), strict=True)):
        tokens = context[i : i + 1, :m]
        queries = tokens if x is context else x[i : i + 1, :n]
        assert_close(whole[i : i + 1, :n], run(layers, queries, tokens), **exactly)


def test_mask_of_true_equals_no_mask(cell: Cell) -> None:
    layers = cell.stack(2).eval()
    for length in (2, CONTEXT):
        x, context = cell.inputs(context=length)
        full = Masks(torch.ones(x.shape[:2], dtype=torch.bool), torch.ones(context.shape[:2], dtype=torch.bool))
        assert_close(run(layers, x, context, full), run(layers, x, context), **exactly)


def test_rows_are_independent(cell: Cell) -> None:
    layers, (x, context) = cell.stack(2).eval(), cell.inputs()
    rows = [(x[i : i + 1], context[i : i + 1]) for i in range(len(x))]
    alone = [run(layers, a, a if x is context else b) for a, b in rows]
    assert_close(run(layers, x, context), torch.cat(alone), **exactly)


def test_rows_of_padding_stay_finite(cell: Cell) -> None:
    layers, (x, context) = cell.stack(2), cell.inputs()
    x.requires_grad_()
    for lengths in ([0, 0, 0], [CONTEXT, 0, 4]):
        mask = prefix(lengths, CONTEXT)
        y = run(layers, x, context, Masks(mask if x is context else None, mask))
        gradients = torch.autograd.grad(y.square().sum(), [x, *layers.parameters()], allow_unused=True)
        assert y.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


def test_eval_is_deterministic_and_changes_nothing(cell: Cell) -> None:
    layers, (x, context) = cell.stack(2, dropout=0.5).eval(), cell.inputs()
    before = copy.deepcopy(layers.state_dict())
    assert_close(run(layers, x, context), run(layers, x, context), rtol=0, atol=0)
    assert_close(dict(layers.state_dict()), dict(before), rtol=0, atol=0)


def test_state_dict_is_all_there_is(cell: Cell) -> None:
    """After training calls, a new copy with the state dict continues identically on new data."""
    trained = cell.stack(2, dropout=0.2)
    if parameters := list(trained.parameters()):
        run(trained, *cell.inputs(), cell.masks()).square().mean().backward()
        torch.optim.SGD(parameters, lr=1e-3).step()
    fresh = cell.stack(2, dropout=0.2)
    fresh.load_state_dict(trained.state_dict())
    x, context = cell.inputs()
    for mode in (True, False):
        outputs = []
        for layers in (trained, fresh):
            torch.manual_seed(1)
            outputs.append(run(layers.train(mode), x, context))
        assert_close(*outputs, rtol=0, atol=0)


def test_the_carry_is_no_parameter(cell: Cell) -> None:
    """Nor a view of one, which FSDP would free before the next layer reads it."""
    attention = cell.build(layers=2)
    _, carry = attention(*cell.inputs(), Masks())
    if carry is not None:
        held = {p.untyped_storage().data_ptr() for p in attention.parameters()}
        assert carry.untyped_storage().data_ptr() not in held


def test_every_parameter_learns(cell: Cell) -> None:
    """A bias may learn by rounding only: on keys it adds the same to all logits of a query, which softmax ignores.

    Weights are tripled, because with initial weights the rows of dba_released are almost equal in layer 3.
    """
    layers, (x, context) = cell.stack(3), cell.inputs()
    for p in layers.parameters():
        p.data.mul_(3)
    y = run(layers, x.requires_grad_(), context)
    (y * torch.randn_like(y)).sum().backward()
    least = {name: 1e-9 if p.ndim > 1 else 0 for name, p in layers.named_parameters()}
    dead = [name for name, p in layers.named_parameters() if p.grad is None or not p.grad.abs().max() > least[name]]
    assert dead == []


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_parametrised_weights_act(cell: Cell) -> None:
    """The way of adapters, because those that wrap a map are refused."""
    layers = cell.stack(2).eval()
    doubled, (x, context) = copy.deepcopy(layers), cell.inputs()
    for linear in (part for part in layers.modules() if isinstance(part, nn.Linear)):
        register_parametrization(linear, "weight", Doubled())
    for linear in (part for part in doubled.modules() if isinstance(part, nn.Linear)):
        linear.weight.data.mul_(2)
    assert torch.equal(run(layers, x, context), run(doubled, x, context))


def test_shorter_sequences_work(cell: Cell) -> None:
    for queries, context in ((1, 1), (1, CONTEXT), (11, 2), (4, 7), (11, CONTEXT)):
        x, tokens = cell.inputs(queries, context)
        y = run(cell.stack(2), x, tokens)
        assert y.shape == x.shape
        assert y.isfinite().all()


def test_longer_sequences_are_served_or_refused(cell: Cell) -> None:
    """Twice the tokens give what a layer built for them gives with the same weights; without a length, the same."""
    attention, lengths = cell.build().eval(), {"query_len": 2 * QUERIES[cell.pattern], "context_len": 2 * CONTEXT}
    if attention.fixed_length:
        too_long = [(cell.inputs(context=CONTEXT + 1), CONTEXT)]
        if cell.pattern is Pattern.CROSS:
            too_long.append((cell.inputs(queries=12), 11))
        for inputs, limit in too_long:
            with pytest.raises(UserError, match=rf"{type(attention).__name__} .*{limit} tokens, on .* {limit + 1};"):
                attention(*inputs, Masks())
        with pytest.raises(UserError, match=r"needs its longest input, because .* pass it, as max_len=1024"):
            cell.build(query_len=UNKNOWN, context_len=UNKNOWN)
        return
    x, context = cell.inputs(lengths["query_len"], lengths["context_len"])
    mask = Masks(torch.rand(x.shape[:2]) < 0.8, torch.rand(context.shape[:2]) < 0.8)
    mask = Masks(mask.context, mask.context) if x is context else mask
    for built_for in (lengths, {"query_len": UNKNOWN, "context_len": UNKNOWN}):
        longer = cell.build(**built_for).eval()
        longer.load_state_dict(attention.state_dict())
        for masks in (Masks(), mask):
            outputs = [real(layer(x, context, masks)[0], masks) for layer in (attention, longer)]
            assert_close(*outputs, rtol=0, atol=0)


def test_heads_that_do_not_divide_the_width_are_refused(cell: Cell) -> None:
    with pytest.raises(UserError, match=re.escape(f"width of {DIM} cannot be split into 5 heads")):
        cell.build(heads=5)


def test_values_of_no_allowed_type_are_refused(setting: tuple[type, str]) -> None:
    owner, name = setting
    with pytest.raises(UserError, match=rf"^(attention|backbone)\.{name} is {{'no': 1}}; choose .+\.$"):
        owner(**{name: {"no": 1}})


@pytest.mark.parametrize(
    ("change", "message"),
    [({"dim": 0}, "dim 0"), ({"heads": 0}, "heads 0"), ({"context_len": -1}, "13 and -1"), ({"dropout": 1.5}, "1.5")],
)
def test_sites_that_make_no_sense_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        site(Pattern.SELF, **change)


def test_gradcheck(cell: Cell) -> None:
    attention = cell.build(dim=8, heads=2).eval()
    x, context = (t[:2].clone().requires_grad_() for t in cell.inputs(4, 6, dim=8))
    mask = prefix([6, 4], 6)
    if cell.pattern is Pattern.SELF:
        function, inputs = lambda t: attention(t, t, Masks(mask, mask))[0], (x,)
    else:
        function, inputs = lambda a, b: attention(a, b, Masks(None, mask))[0], (x, context)
    if isinstance(attention, SurrogateGradient):
        with pytest.raises(GradcheckError):
            gradcheck(function, inputs, fast_mode=True)
    else:
        assert gradcheck(function, inputs, fast_mode=True)


def test_bf16_stays_close(cell: Cell) -> None:
    """In mixed precision, then all in bf16."""
    layers, inputs, masks = cell.stack(2).eval().float(), cell.inputs(), cell.masks()
    exact = run(layers, *cast(inputs, torch.float32), masks)
    for low in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16, enabled=low is torch.float32):
            close = run(layers.to(low), *cast(inputs, low), masks).float()
        error = real(close - exact, masks).norm(dim=-1) / real(exact, masks).norm(dim=-1)
        assert close.isfinite().all()
        if isinstance(layers[0], Discrete):  # changed codes move some tokens, not most of them
            assert error.median() < 0.1
        else:
            assert real(close - exact, masks).norm() < 0.03 * real(exact, masks).norm()


@pytest.mark.slow
def test_long_inputs_fit_into_float16(cell: Cell) -> None:
    """Sums over thousands of tokens exceed its range, 65,504."""
    attention = cell.build(dim=64, query_len=2048, context_len=2048).eval()
    x, other = 2 * torch.randn(2, 1, 2048, 64, dtype=torch.float64)
    inputs = (x, x) if cell.pattern is Pattern.SELF else (x, other)
    with torch.no_grad():
        exact, _ = attention(*inputs, Masks())
        attention.half()
        for path in (contextlib.nullcontext, as_on_a_gpu):
            with path():
                close, _ = attention(*cast(inputs, torch.float16), Masks())
            assert close.isfinite().all()
            if not isinstance(attention, Discrete):  # codes change
                assert (close - exact).norm() < 0.03 * exact.norm()


def test_the_kernel_of_large_products_changes_nothing(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tested on small products by lowering the threshold."""
    layers, (x, context), masks = cell.stack(2).float(), cast(cell.inputs(), torch.float32), cell.masks()
    x.requires_grad_()
    results = []
    for worth in (1 << 62, 0):
        monkeypatch.setattr(affine, "_WORTH", worth)
        torch.manual_seed(1)
        y = run(layers.train(), x, context, masks)
        gradients = torch.autograd.grad(real(y, masks).square().mean(), [x, *layers.parameters()], allow_unused=True)
        with torch.no_grad():
            results.append([y, run(layers.eval(), x, context, masks), *(g for g in gradients if g is not None)])
    if isinstance(layers[0], Discrete):  # a code may change
        assert all(part.isfinite().all() for part in results[1])
    else:
        assert_close(*results, rtol=1e-3, atol=1e-5)


def test_mixed_precision_of_a_gpu_stays_finite(cell: Cell) -> None:
    """In training with dropout, with rows of every length down to none."""
    layers, (x, context), masks = cell.stack(2, dropout=0.2).float(), cell.inputs(), cell.masks()
    for mask in {masks.query, masks.context}:
        mask[1] = False
    masks.context[2] = False
    tokens = context.float().requires_grad_()
    for half in (torch.float16, torch.bfloat16):
        with rules_of_cuda(), as_on_a_gpu(), torch.autocast("cpu", half):
            y = run(layers, tokens if x is context else x.float(), tokens, masks)
        (gradient,) = torch.autograd.grad(y.float().square().mean(), tokens)
        assert y.isfinite().all()
        assert gradient.isfinite().all()


def test_dropout_acts_in_training_only(cell: Cell) -> None:
    with_dropout, without = cell.stack(2, dropout=0.5), cell.stack(2)
    without.load_state_dict(with_dropout.state_dict())
    x, context = cell.inputs()
    assert_close(run(with_dropout.eval(), x, context), run(without.eval(), x, context), rtol=0, atol=0)
