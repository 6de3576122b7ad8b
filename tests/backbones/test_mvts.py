"""The time-series transformer: its size, its batch norm and its read-out."""

import pytest
import torch
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible

from subquad.attention.softmax import Softmax
from subquad.backbones.mvts import MVTSEncoder, TokenBatchNorm
from subquad.specs import DataSpec
from subquad.utils.errors import UserError

SPEC = DataSpec(max_len=9, channels=3, classes=4)
VALID = torch.arange(9) < torch.tensor([9, 4])[:, None]


def encoder(spec=SPEC, **changes):
    return MVTSEncoder(spec, **{"attention": Softmax, "layers": 2, "dim": 8, "heads": 2, "ffn": 12} | changes)


def series(length=9):
    return torch.randn(2, length, 3) * VALID[:, :length, None]


def test_the_number_of_parameters_is_that_of_the_formula():
    n, c, k, layers, d, f = 29, 12, 9, 3, 128, 256
    attention, feed_forward, norms = 4 * (d * d + d), 2 * d * f + f + d, 2 * 2 * d
    expected = (c * d + d) + n * d + layers * (attention + feed_forward + norms) + (n * d * k + k)
    spec = DataSpec(max_len=n, channels=c, classes=k)
    model = encoder(spec, layers=layers, dim=d, heads=8, ffn=f)
    assert sum(p.numel() for p in model.parameters()) == expected == 436_233


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_every_arrangement_predicts_and_learns(norm, position):
    for spec in (SPEC, DataSpec(max_len=9, channels=3)):
        model = encoder(spec, norm=norm, position=position)
        out = model(series(), VALID)
        assert out.shape == (2, spec.outputs)
        out.pow(2).sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_batch_norm_counts_padding():
    norm = TokenBatchNorm(5)
    x = torch.randn(2, 9, 5) + 3
    y = norm(x)
    assert y.flatten(0, 1).mean(0).abs().max() < 1e-5
    torch.testing.assert_close(norm.running_mean, 0.1 * x.flatten(0, 1).mean(0))
    model = encoder(dropout=0.0).train()
    inputs = series()
    poisoned = torch.where(VALID[..., None], inputs, 5.0)
    assert not torch.allclose(model(inputs, VALID), model(poisoned, VALID))


def test_in_evaluation_padding_changes_nothing():
    model = encoder().eval()
    inputs = series()
    clean = model(inputs, VALID)
    poisoned = torch.where(VALID[..., None], inputs, 1e3)
    torch.testing.assert_close(model(poisoned, VALID), clean)
    torch.testing.assert_close(model(inputs[1:, :6], VALID[1:, :6]), clean[1:])


def test_the_read_out_sees_zeros_at_padding():
    model, recorded = encoder().eval(), []
    model.head.register_forward_hook(lambda _, given, __: recorded.append(given[0].view(2, 9, 8)))
    model(series(), VALID)
    assert not recorded[0][~VALID].any()
    assert recorded[0][VALID].any(-1).all()


def test_tokens_are_refused():
    with pytest.raises(UserError, match="backbone=sequence"):
        encoder(DataSpec(max_len=9, vocab=3, classes=2))


def test_the_embedding_is_scaled_by_the_root_of_the_width():
    model = encoder(dim=16)
    x = series()
    torch.testing.assert_close(model.embed(x), 4 * (x @ model.embed.weight.T + model.embed.bias))


def test_the_last_norm_stands_before_the_read_out():
    model, recorded = encoder(final_norm=True, norm="layer").eval(), []
    model.norm.register_forward_hook(lambda _, inputs, out: recorded.append((inputs[0], out)))
    outputs = model(series(), None)
    [(given, normed)] = recorded
    torch.testing.assert_close(normed, torch.nn.functional.layer_norm(given, (8,)))
    torch.testing.assert_close(outputs, model.head(torch.nn.functional.gelu(normed).flatten(1)))
    assert sum(p.numel() for p in encoder().parameters()) + 16 == sum(p.numel() for p in model.parameters())
