"""DBA against the naive functions of its paper's equations, for every setting that the paper leaves open."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from reference import dba as reference
from torch import Tensor

from attention.cells import HEADS, site
from attention.checks import LENGTHS, agree, stack, tokens
from subquad.attention.dba import DBA, naive_cross_attention, naive_self_attention
from subquad.specs import Masks, Pattern
from subquad.utils.devices import as_on_a_gpu
from subquad.utils.fixed_weights import fixed_weights

KEYS = {
    "z_mode": ["shared", "propagate", "per_layer"],
    "compress_heads": ["shared", "per_head"],
    "phi_scale": ["none", "sqrt_d"],
    "recon_source": ["x", "qk"],
    "recon_norm": ["none", "inv_len", "softmax"],
    "d_in_mode": ["total", "per_head", "single_map"],
    "scale": ["per_head", "total"],
    "r_shared": [True, False],
    "r_bias": [False, True],
    "out_proj": [True, False],
    "optimize_n": [True, False],
    "optimize_d": [True, False],
}
"""Every key that changes the function, the plain reading of the paper first."""

PLAIN = {key: values[0] for key, values in KEYS.items()}
ALONE = [{key: value} for key, values in KEYS.items() for value in values[1:]]
DRAWN = random.Random(0)
MIXED = [{key: DRAWN.choice(values) for key, values in KEYS.items()} | {"optimize_n": True} for _ in range(12)]
both_patterns = pytest.mark.parametrize("pattern", Pattern)


def printed(layers: Any, pattern: Pattern, **keys: Any) -> Any:
    """The reference of a stack, with the same keys."""
    choices = reference.Choices(heads=HEADS, **{k: v for k, v in keys.items() if k not in ("d_p", "r_bias")})

    def layer(module, x, context, carry):
        last = module is layers[-1]
        return reference.layer(module, x, context, carry, cross=pattern is Pattern.CROSS, last=last, c=choices)

    return layer


def name(keys: dict[str, Any]) -> str:
    """The settings that differ from the defaults, for the name of a test."""
    return ",".join(f"{k}={v}" for k, v in keys.items() if v != PLAIN.get(k))


def compare(pattern: Pattern, lengths: str, layers: int = 2, **keys: Any) -> None:
    keys = {"d_p": 5, "d_in": 12, **PLAIN, **keys}
    built = stack(partial(DBA, **keys), pattern, layers)
    agree(built, printed(built, pattern, **keys), lengths)


@pytest.mark.parametrize("lengths", ["37", "padded"])
@both_patterns
def test_equals_the_naive_function(pattern: Pattern, lengths: str) -> None:
    def layer(module, x, context, carry):
        z = module.latent if carry is None else carry
        cross = pattern is Pattern.CROSS
        return naive_cross_attention(module, z, x, context) if cross else naive_self_attention(module, z, x), z

    agree(stack(partial(DBA, d_p=5, d_in=12), pattern), layer, lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
@both_patterns
def test_equals_the_printed_form(pattern: Pattern, lengths: str) -> None:
    compare(pattern, lengths, layers=3)


@pytest.mark.parametrize("lengths", ["37", "padded"])
@both_patterns
@pytest.mark.parametrize("keys", ALONE + MIXED, ids=name)
def test_every_choice_equals_the_printed_form(keys: dict[str, Any], pattern: Pattern, lengths: str) -> None:
    compare(pattern, lengths, **keys)


@pytest.mark.parametrize("device", [nullcontext, as_on_a_gpu])
@pytest.mark.parametrize("z_mode", KEYS["z_mode"])
@pytest.mark.parametrize("phi_scale", KEYS["phi_scale"])
def test_the_derivatives_written_out_are_those_of_the_printed_form(
    z_mode: str, phi_scale: str, device: Callable
) -> None:
    with device():
        compare(Pattern.SELF, "padded", layers=3, z_mode=z_mode, phi_scale=phi_scale, recon_norm="softmax")


@pytest.mark.parametrize("device", [nullcontext, as_on_a_gpu])
def test_dropped_weights_have_the_same_gradients_under_both_forms(
    device: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, x, results = partial(DBA, d_p=5, d_in=12), tokens(2, 9, 24).requires_grad_(), []
    layer = factory(site(Pattern.SELF, dropout=0.5)).double()
    for written_out in (True, False):
        monkeypatch.setattr(DBA, "_plain", lambda *_, to=written_out: to)
        torch.manual_seed(1)
        with device():
            y, _ = layer(x, x, Masks())
        results.append([y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("keys", [{}, {"z_mode": "propagate", "phi_scale": "sqrt_d"}, {"d_in_mode": "single_map"}])
def test_fixed_weights_give_the_same_outputs_and_their_products_are_kept_no_longer(keys: dict[str, Any]) -> None:
    layers = stack(partial(DBA, d_p=5, d_in=12, **keys), Pattern.SELF, 2)
    masks, products = Masks(*2 * [torch.arange(9) < torch.tensor([[9], [4], [0]])]), {}
    x = tokens(3, 9, 24)

    def outputs() -> list[Tensor]:
        y, carry = layers[0](x, x, masks)
        return [y, layers[1](y, y, masks, carry)[0]]

    with as_on_a_gpu():
        with torch.no_grad(), fixed_weights(products):
            first, second = outputs(), outputs()
        torch.testing.assert_close(first, [y.detach() for y in outputs()])
        torch.testing.assert_close(first, second)
        assert products
        layers[0].value.weight.data.mul_(2)  # no version of the weight tells
        with torch.no_grad(), fixed_weights():
            changed = outputs()
        torch.testing.assert_close(changed, [y.detach() for y in outputs()])
        assert not torch.allclose(first[1], changed[1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 0.005)])
def test_few_operators_are_as_exact_in_mixed_precision_as_autocast(dtype: torch.dtype, tolerance: float) -> None:
    layer, x = DBA(dim=64, heads=8, max_len=300, d_p=8), torch.randn(3, 300, 64, requires_grad=True)
    mask = torch.arange(300) < torch.tensor([[200], [300], [0]])
    # Two biases have no gradient, and that of the map of W'_r is here a small difference of large sums.
    others = ("key.bias", "contract.bias", "expand.weight", "expand.bias")
    named = [p for name, p in layer.named_parameters() if name not in others]
    results = []
    for half in (True, False):
        layer.to(torch.float32 if half else torch.float64)
        with as_on_a_gpu(), torch.autocast("cpu", dtype, enabled=half):
            y = layer(x if half else x.double(), mask=mask)
            gradients = torch.autograd.grad((y * y.detach().sign()).sum(), [x, *named])  # autocast must not matter
        assert y.dtype is (dtype if half else torch.float64)
        assert all(g.dtype == p.dtype for g, p in zip(gradients, [x, *named], strict=True))
        results.append([y, *gradients])
    for found, expected in zip(*results, strict=True):
        assert (found - expected).norm() <= tolerance * expected.norm()


@both_patterns
@pytest.mark.parametrize("keys", [{"d_in": 10}, {"d_in": 10, "scale": "total"}, {"d_p": 40}], ids=name)
def test_sizes_that_do_not_divide_and_more_rows_than_tokens(keys: dict[str, Any], pattern: Pattern) -> None:
    compare(pattern, "padded", **keys)
