"""Entropy and largest weight of the rows of W_r, by layer."""

import math
from functools import partial

import pytest
import torch
from attention.checks import stack

from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.backbones.sequence import SequenceEncoder
from subquad.measure.analysis.concentration import concentration
from subquad.specs import DataSpec, Masks, Pattern
from subquad.utils.errors import UserError


class Stacked(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x, valid):
        carry = None
        for layer in self.layers:
            y, carry = layer(x, x, Masks(valid, valid), carry)
            x = x + y
        return x


def batch(lengths, dim=24):
    torch.manual_seed(1)
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), dim, dtype=torch.float64), valid


def test_a_zero_latent_reads_all_real_tokens_alike_and_a_large_one_picks_one():
    network = Stacked(stack(partial(DBA, d_p=3, z_mode="per_layer"), Pattern.SELF, 2))
    torch.nn.init.zeros_(network.layers[0].latent)
    torch.nn.init.normal_(network.layers[1].latent, std=1e6)
    results = concentration(network, [batch([5, 2]), batch([1, 4])])
    assert results["entropy"] == pytest.approx([1, 0], abs=1e-6)
    assert results["largest"] == pytest.approx([(1 / 5 + 1 / 2 + 1 / 4) / 3, 1], abs=1e-6)
    assert results["distinct"][0] == pytest.approx(1, abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 2])
def test_rows_that_read_one_token_each_are_counted(heads):
    """In each head four rows read three tokens, one of them twice."""
    [layer] = stack(partial(DBA, d_p=4, compress_heads="per_head"), Pattern.SELF, 1, heads=heads)
    x, valid = batch([3])
    wanted = 1e3 * torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2]]
    parts = [wanted @ torch.linalg.pinv(part).mT for part in layer.query(x[0]).chunk(heads, -1)]
    layer.latent.copy_(torch.cat(parts, -1))
    shares = torch.tensor([0.25, 0.25, 0.5])
    [results] = concentration(Stacked([layer]), [(x, valid)])["distinct"]
    assert results == pytest.approx(float(torch.special.entr(shares).sum().exp()), rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("compress_heads", "phi_scale"), [("shared", "none"), ("shared", "sqrt_d"), ("per_head", "sqrt_d")]
)
def test_it_is_that_of_the_papers_formula_in_every_layer(compress_heads, phi_scale):
    factory = partial(DBA, d_p=3, compress_heads=compress_heads, phi_scale=phi_scale)
    network = Stacked(stack(factory, Pattern.SELF, 2))
    x, valid = batch([7, 4])
    results = concentration(network, [(x, valid)])
    z, expected = None, []
    for layer in network.layers:
        z = layer.latent.expand(2, -1, -1) if z is None else z
        groups = layer.groups
        q = layer.query(x).unflatten(-1, (groups, -1)).transpose(1, 2)
        logits = z.unflatten(-1, (groups, -1)).transpose(1, 2) @ q.mT
        logits = logits if phi_scale == "none" else logits / math.sqrt(24 / groups)
        rows = [logits[i, ..., :n].softmax(-1).flatten(0, -2) for i, n in enumerate((7, 4))]
        entropies = [-(r * r.log()).sum(-1) / math.log(n) for r, n in zip(rows, (7, 4), strict=True)]
        expected.append((torch.cat(entropies).mean(), torch.cat([r.amax(-1) for r in rows]).mean()))
        y, z = layer(x, x, Masks(valid, valid), z)
        x = x + y
    assert results["entropy"] == pytest.approx([float(e) for e, _ in expected])
    assert results["largest"] == pytest.approx([float(w) for _, w in expected])


def test_tied_layers_are_told_apart_and_nothing_stays_hooked():
    spec = DataSpec(max_len=6, channels=2, classes=3)
    network = SequenceEncoder(spec, partial(DBA, d_p=3), 3, 8, 2, 8, tie_layers=True).eval()
    results = concentration(network, [(torch.randn(2, 6, 2), None)])
    assert len(set(results["largest"])) == 3
    assert not any(m._forward_pre_hooks for m in network.modules())


@pytest.mark.parametrize("factory", [Softmax, partial(DBA, optimize_n=False)])
def test_networks_without_a_compression_are_refused(factory):
    with pytest.raises(UserError, match="attention=dba"):
        concentration(Stacked(stack(factory, Pattern.SELF, 1)), [batch([3])])


def test_inputs_without_two_tokens_are_refused():
    with pytest.raises(UserError, match="two tokens"):
        concentration(Stacked(stack(DBA, Pattern.SELF, 1)), [batch([1, 1])])
