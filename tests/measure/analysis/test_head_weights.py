"""The recorded attention matrices of a network are those that its layers use."""

import math

import pytest
import torch

from subquad.attention.attention_bn import AttentionBN
from subquad.attention.attention_sh import AttentionSH
from subquad.attention.linear import Linear
from subquad.attention.softmax import Softmax
from subquad.backbones.sequence import SequenceEncoder
from subquad.measure.analysis.attention_matrix import build, value_weights
from subquad.measure.analysis.head_weights import HeadWeights, distances, head_distances
from subquad.specs import DataSpec, Masks
from subquad.utils.errors import UserError


@pytest.mark.parametrize(
    "factory",
    [Softmax, AttentionBN, lambda site: AttentionSH(site, scales=[1, 4]), lambda site: AttentionSH(site, scales=3)],
)
def test_weights_equal_those_computed_from_outputs(factory):
    attention, x = build(factory, 10, 12, 2)
    with HeadWeights(attention) as results:
        attention(x, x, Masks())
    [weights] = results.layers
    torch.testing.assert_close(weights[0], value_weights(attention, x))


@pytest.mark.parametrize("factory", [Softmax, lambda site: AttentionSH(site, scales=[1, 4])])
def test_padding_has_no_weight_and_changes_none(factory):
    attention, x = build(factory, 10, 12, 2)
    mask = torch.arange(10)[None] < 7
    with HeadWeights(attention) as padded:
        attention(x, x, Masks(mask, mask))
    with HeadWeights(attention) as short:
        attention(x[:, :7], x[:, :7], Masks())
    torch.testing.assert_close(padded.layers[0][..., :7, :7], short.layers[0])
    assert padded.layers[0][..., 7:, :].abs().max() == padded.layers[0][..., 7:].abs().max() == 0


def test_every_layer_leaves_its_own_and_hooks_go_away():
    network = SequenceEncoder(DataSpec(max_len=6, vocab=5, classes=2), Softmax, 3, 8, 2, 8).eval()
    tokens = torch.randint(1, 5, (2, 6))
    with HeadWeights(network) as results:
        network(tokens, None)
    assert [tuple(weights.shape) for weights in results.layers] == [(2, 2, 6, 6)] * 3
    assert len({float(weights.sum() + weights.square().sum()) for weights in results.layers}) == 3
    network(tokens, None)
    assert len(results.layers) == 3


def test_distances_are_frobenius_norms_of_pairs():
    weights = torch.rand(2, 3, 4, 4)
    results = distances(weights)
    pairs = [(0, 1), (0, 2), (1, 2)]
    wanted = [[math.sqrt(float(((row[i] - row[j]) ** 2).sum())) for i, j in pairs] for row in weights]
    torch.testing.assert_close(results, torch.tensor(wanted))


def test_mean_and_spread_are_over_rows_and_then_over_layers():
    torch.manual_seed(1)
    network = SequenceEncoder(DataSpec(max_len=6, vocab=5, classes=2), Softmax, 2, 8, 2, 8).eval()
    network.layers[1].attention.projections.query.weight.data.mul_(20)
    batches = [(torch.randint(1, 5, (1, 6)), None) for _ in range(4)]
    by_layer = [[], []]
    for batch in batches:
        with HeadWeights(network) as results:
            network(*batch)
        for layer, weights in enumerate(results.layers):
            by_layer[layer].append(float((weights[0, 0] - weights[0, 1]).norm()))
    means = [sum(d) / 4 for d in by_layer]
    stds = [math.sqrt(sum((x - m) ** 2 for x in d) / 4) for d, m in zip(by_layer, means, strict=True)]
    mean, spread = head_distances(network, batches)
    assert mean == pytest.approx(sum(means) / 2, rel=1e-5)
    assert spread == pytest.approx(sum(stds) / 2, rel=1e-4)


def test_equal_heads_have_no_distance_and_other_attentions_are_refused():
    attention, x = build(Softmax, 6, 8, 2)
    p = attention.projections
    for linear in (p.query, p.key):
        linear.weight.data[4:] = linear.weight.data[:4]
        linear.bias.data[4:] = linear.bias.data[:4]
    assert head_distances(attention, [(x, x, Masks())]) == pytest.approx((0, 0), abs=1e-7)
    with pytest.raises(UserError, match="softmax heads"):
        head_distances(build(Linear, 6, 8, 2)[0], [(x, x, Masks())])
