"""The computed weights of an attention are the matrix of its paper."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import encoders, made, mechanisms

from subquad.attention.attention_sh import AttentionSH
from subquad.attention.linear import Linear
from subquad.attention.softmax import Softmax
from subquad.backbones.encoder import sized
from subquad.config.compose import load_attention, load_factory
from subquad.measure.analysis.attention_matrix import (
    build,
    cumulative_spectrum,
    effective_rank,
    influence,
    mapping,
    passed_rank,
    softmax_like,
    value_weights,
)
from subquad.utils.errors import UserError

NO_WEIGHTS = {
    "agent", "dba_released", "deltanet", "flatten", "fnet", "gated_deltanet", "hydra", "inline", "linformer_conv",
    "longformer", "luna", "mega", "reformer", "transformer_ls", "xca", "yoso", "yoso_sampled",
}  # fmt: skip
"""No value map, one mixing for each channel, or outputs that are not linear in the values."""


def heads_of(attention, x):
    p = attention.projections
    return (t[0].detach() for t in p.qkv(x, x))


def test_the_weights_of_softmax_are_the_attention_matrix():
    attention, x = build(Softmax, 12, 16, 4)
    q, k, _ = heads_of(attention, x)
    torch.testing.assert_close(value_weights(attention, x), (q @ k.mT / math.sqrt(4)).softmax(-1))


def test_the_weights_of_linear_attention_are_its_normalised_kernel():
    attention, x = build(Linear, 12, 16, 4)
    q, k, _ = heads_of(attention, x)
    kernel = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    torch.testing.assert_close(value_weights(attention, x), kernel / (kernel.sum(-1, keepdim=True) + 1e-6))


def test_the_weights_of_a_scaled_head_are_spread_over_its_windows():
    attention, x = build(lambda site: AttentionSH(site, scales=[1, 4]), 12, 16, 2)
    q, k, _ = heads_of(attention, x)
    pooled = k[1].unflatten(0, (3, 4)).mean(1)
    spread = (q[1] @ pooled.mT / math.sqrt(8)).softmax(-1).repeat_interleave(4, 1) / 4
    weights = value_weights(attention, x)
    torch.testing.assert_close(weights[1], spread)
    torch.testing.assert_close(weights[0], (q[0] @ k[0].mT / math.sqrt(8)).softmax(-1))


@pytest.mark.parametrize("name", mechanisms())
def test_weights_give_the_outputs_or_are_refused(name):
    attention, x = build(made("attention", name), 16, 16, 2)
    weights = value_weights(attention, x)
    assert (weights is None) == (name in NO_WEIGHTS), "if that is right, change NO_WEIGHTS"
    if weights is not None:
        maps = getattr(attention, "projections", attention)
        values = maps.value(x)[0]
        mixed = torch.cat([w @ v for w, v in zip(weights, values.chunk(2, -1), strict=True)], -1)
        torch.testing.assert_close(mapping(attention)(x)[0], maps.out(mixed), rtol=1e-6, atol=1e-8)


def test_value_weights_leave_the_attention_as_it_was():
    attention, x = build(Softmax, 8, 8, 2)
    before = {name: value.clone() for name, value in attention.state_dict().items()}
    value_weights(attention, x)
    assert all(torch.equal(before[name], value) for name, value in attention.state_dict().items())


def test_influence_is_the_norm_of_the_jacobian_block():
    attention, x = build(Softmax, 5, 6, 2)
    jacobian = torch.autograd.functional.jacobian(lambda t: mapping(attention)(t)[0], x)[:, :, 0]
    torch.testing.assert_close(influence(attention, x), jacobian.square().sum((1, 3)).sqrt())


@pytest.mark.parametrize(
    ("name", "overrides", "numbers"),
    [
        ("softmax", [], 8 * 16),  # everything: 8 tokens of 16
        ("luna", ["attention.l=2"], 2 * 16),
        ("dba", ["attention.d_p=3"], 3 * 16),
        ("local", ["attention.window=4"], 2 * 16),
        ("linear", [], 2 * (4 * 5 - 1)),  # for each head the ratio of sums of key times value and of keys
    ],
)
def test_a_mechanism_passes_on_as_many_numbers_as_its_state_has(name, overrides, numbers):
    heads, dim = (2, 8) if name == "linear" else (2, 16)
    attention, x = build(lambda site: load_attention(name, overrides)(site=site), 16, dim, heads)
    assert passed_rank(attention, x) == numbers


def test_influence_of_a_local_band_ends_at_its_edge():
    attention, x = build(lambda site: load_attention("local", ["attention.window=4"])(site=site), 16, 16, 2)
    recorded = influence(attention, x) > 0
    distance = (torch.arange(16)[:, None] - torch.arange(16)).abs()
    reach = int(distance[recorded].max())
    assert 0 < reach < 15
    assert torch.equal(recorded, recorded.mT)


@pytest.mark.parametrize("name", encoders())
def test_encoders_show_their_latents_or_tokens(name):
    small = {"segment": 4, "latents": 3, "layers": 2, "d_state": 4}
    encoder, x = build(sized(load_factory(f"backbone={name}"), **small), 8, 8, 2)
    matrix = influence(encoder, x)
    assert matrix.shape == (8 if name.startswith(("s4", "s5")) else 3, 8)
    assert (matrix > 0).all()


def test_what_has_no_outputs_of_tokens_is_refused():
    with pytest.raises(UserError, match="no output for each token"):
        mapping(torch.nn.Linear(2, 2))
    attention, x = build(Softmax, 9, 8, 2)
    with pytest.raises(UserError, match="width of at least 9"):
        value_weights(attention, x)


def test_softmax_like_takes_the_projections_where_they_fit():
    attention, _ = build(made("attention", "dba"), 8, 8, 2)
    linear, _ = build(Linear, 8, 8, 2, seed=3)
    assert not softmax_like(attention, attention.site).state_dict().keys() <= attention.state_dict().keys()
    original = softmax_like(linear, linear.site).state_dict()
    assert all(torch.equal(original[name], value) for name, value in linear.state_dict().items())


def test_spectra():
    matrix = torch.diag(torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(cumulative_spectrum(matrix), torch.tensor([0.75, 1, 1, 1], dtype=torch.float64))
    assert float(effective_rank(torch.eye(5))) == pytest.approx(5)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert float(effective_rank(matrix)) == pytest.approx(math.exp(entropy))
