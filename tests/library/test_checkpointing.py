"""Gradient checkpointing of swapped models: the same gradients, or one sentence; also with a carry, and many passes."""

from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
from conftest import made
from library.hosts import REAL, bert
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from subquad import Linformer, swap
from subquad.utils.errors import UserError

OF_WEIGHTS = ["dba", "linformer_layer"]
OF_TOKENS = ["dba_propagate", "dba_released", "luna"]
REFUSED = r"passes a tensor from layer to layer, .* checkpoint with use_reentrant=False"
Run = Callable[[Tensor], Tensor]
pytestmark = pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad", "ignore:.gradient_checkpointing_enable. is deprecated"
)


def encoder(attention: str) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    sizes = {"k": 5} if attention == "linformer_layer" else {"l": 5} if attention == "luna" else {"d_p": 5}
    swap(model, partial(made("attention", attention), **sizes), max_len=REAL.shape[1])
    return model


def steps(model: nn.TransformerEncoder, x: Tensor, count: int, **how: bool) -> Tensor:
    """The encoder, checkpointed in parts of so many layers."""

    def part(x: Tensor, first: int) -> Tensor:
        for layer in model.layers[first : first + count]:
            x = layer(x, src_key_padding_mask=~REAL)
        return x

    for first in range(0, 3, count):
        x = checkpoint(part, x, first, **how) if how else part(x, first)
    return x


def two_losses(run: Run, inputs: list[Tensor]) -> Tensor:
    return run(inputs[0]).square().sum() + run(inputs[1]).pow(3).sum()


def one_after_the_other(run: Run, inputs: list[Tensor]) -> Tensor:
    return run(run(inputs[0])).square().sum()


def gradients(model: nn.Module, run: Run, losses: Callable[[Run, list[Tensor]], Tensor]) -> list[Tensor]:
    """The gradients of inputs and parameters, after a pass without gradients that may spoil what layers keep."""
    model.zero_grad()
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*REAL.shape, 32, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(2)]
    torch.manual_seed(1)
    loss = losses(run, inputs)
    with torch.no_grad():
        run(inputs[1].flip(0))
    loss.backward()
    return [t.grad for t in (*inputs, *model.parameters()) if t.grad is not None]


@pytest.mark.parametrize("losses", [two_losses, one_after_the_other])
@pytest.mark.parametrize("attention", [*OF_WEIGHTS, *OF_TOKENS])
def test_layers_that_are_called_again_have_the_carry_of_their_pass(attention, losses):
    model = encoder(attention)
    want = gradients(model, partial(steps, model, count=1), losses)
    for count in (1, 2):
        got = gradients(model, partial(steps, model, count=count, use_reentrant=False), losses)
        assert_close(got, want, rtol=0, atol=0)
        again = partial(gradients, model, partial(steps, model, count=count, use_reentrant=True), losses)
        if attention in OF_WEIGHTS:
            assert_close(again(), want, rtol=1e-9, atol=1e-9)
        else:
            with pytest.raises(UserError, match=REFUSED):
                again()


@pytest.mark.parametrize("attention", ["dba", "luna"])
def test_only_attentions_or_the_first_layer_may_be_checkpointed(attention):
    model = encoder(attention)
    run = partial(steps, model, count=3)
    want = gradients(model, run, two_losses)
    first = model.layers[0]
    plain = first.forward
    first.forward = lambda x, **given: checkpoint(partial(plain, **given), x, use_reentrant=True)
    if attention == "dba":
        assert_close(gradients(model, run, two_losses), want, rtol=1e-9, atol=1e-9)
    else:
        with pytest.raises(UserError, match=REFUSED):
            gradients(model, run, two_losses)
    del first.forward
    for layer in model.layers:
        layer.self_attn.forward = partial(checkpoint, layer.self_attn.forward, use_reentrant=False)
    assert_close(gradients(model, run, two_losses), want, rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("attention", ["dba", "luna", partial(Linformer, sharing="layer")], ids=str)
def test_gradient_checkpointing_of_transformers(attention, reentrant):
    model = bert("Bert").train()
    swap(model, attention)
    ids = torch.randint(4, 50, (2, *REAL.shape))

    def step() -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        a, b = (model(input_ids=i, attention_mask=REAL.long()).last_hidden_state[REAL] for i in ids)
        (a.square().sum() + (a * b).sum()).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    want = step()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if attention == "luna" and reentrant:
        with pytest.raises(UserError, match=REFUSED):
            step()
    else:
        assert_close(step(), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ["dba", "luna"])
def test_gradient_checkpointing_of_timm(attention):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5, drop_rate=0.1)
    swap(model, attention)
    model.double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def step() -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        (model(images).square().sum() + model(images.flip(0) / 2).sum()).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    want = step()
    model.set_grad_checkpointing()
    assert_close(step(), want, rtol=0, atol=0)


def test_an_earlier_pass_is_not_mistaken_for_this_one():
    """Its graph lies before that of the checkpointed pass, which recorded none of its own."""
    model = encoder("luna")
    x = torch.randn(*REAL.shape, 32, dtype=torch.float64)
    y = steps(model, steps(model, x, count=1), count=1, use_reentrant=True)
    with pytest.raises(UserError, match=REFUSED):
        y.sum().backward()
