"""Language models: inputs of the heads, tied weights, padding, and starting from other weights."""

import functools

import pytest
import torch
from conftest import made
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible

from subquad.attention.linformer import Linformer
from subquad.attention.softmax import Softmax
from subquad.backbones.language import Autoencoder, LanguageClassifier, LanguageEncoder, LanguageModel
from subquad.specs import DataSpec, TextSpec
from subquad.utils.errors import UserError

TEXT = TextSpec(max_len=12, vocab=30, tokenizer="a1f59ff5c415")
LABELLED = TextSpec(max_len=12, vocab=30, classes=3, tokenizer="a1f59ff5c415")
SIZES = {"layers": 2, "dim": 16, "heads": 2, "ffn": 24}
LENGTHS = torch.tensor([12, 7, 1])
SMALL = {"linformer": {"k": 4}, "linformer_layer": {"k": 4}, "luna": {"l": 4}, "dba": {"d_p": 4, "d_in": 8}}


def model(attention=Softmax, spec=TEXT, **changes):
    return LanguageModel(spec, attention, **SIZES | changes).double().eval()


def classifier(attention=Softmax, spec=LABELLED, **changes):
    return LanguageClassifier(spec, attention, **SIZES | changes).double().eval()


def batch():
    valid = torch.arange(12) < LENGTHS[:, None]
    return torch.randint(1, 30, (3, 12)).masked_fill(~valid, 0), valid


def test_logits_are_those_of_the_chosen_places():
    network = model()
    tokens, valid = batch()
    chosen = valid & (torch.rand(3, 12) < 0.5)
    chosen[0, 0] = True
    everywhere = network(tokens, valid, torch.ones_like(valid).nonzero()).view(3, 12, 30)
    torch.testing.assert_close(network(tokens, valid, chosen.nonzero()), everywhere[chosen])
    assert network(tokens, valid, torch.zeros_like(valid).nonzero()).shape == (0, 30)


def test_the_decoder_is_the_embedding():
    network = model()
    tokens, valid = batch()
    with torch.no_grad():
        network.encoder.embed.weight[7] *= 2
        network.bias[7] += 1.5
        features = []
        network.norm.register_forward_hook(lambda _, __, out: features.append(out))
        logits = network(tokens, valid, valid.nonzero())
    torch.testing.assert_close(logits[:, 7], features[0] @ network.encoder.embed.weight[7] + 1.5)
    whole = sum(p.numel() for p in network.parameters())
    assert whole == sum(p.numel() for p in network.encoder.parameters()) + 16 * 16 + 16 + 2 * 16 + 30


def test_an_autoencoder_reads_a_row_from_its_last_token_and_the_place():
    network = Autoencoder(TEXT, Softmax, **SIZES).double().eval()
    tokens, valid = batch()
    vectors = torch.randn(3, 12, 16, dtype=torch.float64)
    network.encoder.forward = lambda inputs, _: vectors[: len(inputs), : inputs.shape[1]]
    logits = network(tokens, valid, valid.nonzero())
    assert len(logits.unique(dim=0)) == len(logits)
    vectors[0, 11] += torch.arange(16)
    vectors[1:, 7:] += 1
    vectors[:, :6] += 1
    vectors[2, 0] -= 1
    changed = network(tokens, valid, valid.nonzero())
    assert not torch.isclose(changed[:12, 1:], logits[:12, 1:]).all(1).any()
    torch.testing.assert_close(changed[12:], logits[12:])
    whole = network(tokens[:1], None, valid[:1].nonzero())
    torch.testing.assert_close(whole, changed[:12])


@pytest.mark.parametrize(("order", "convolution"), [("post", None), ("pre", None), ("pre", 3)])
@pytest.mark.parametrize("name", ["softmax", "dba", "luna", "linformer", "linformer_layer"])
def test_padding_never_changes_an_output(name, order, convolution):
    attention = functools.partial(made("attention", name), **SMALL.get(name, {}))
    sizes = {"order": order, "convolution": convolution}
    network, labeller = model(attention, **sizes), classifier(attention, **sizes)
    tokens, valid = batch()
    poisoned = torch.where(valid, tokens, torch.randint(1, 30, tokens.shape))
    close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    close(network(poisoned, valid, valid.nonzero()), network(tokens, valid, valid.nonzero()))
    close(labeller(poisoned, valid), labeller(tokens, valid))
    close(labeller(tokens[1:2, :9], valid[1:2, :9]), labeller(tokens, valid)[1:2])


def test_a_convolution_reads_the_neighbours_and_no_token_farther_away():
    """Without attention, nothing else lets a token see another."""
    network = model(None, convolution=3)
    tokens = torch.randint(1, 29, (1, 12))
    changed = tokens.clone()
    changed[0, 5] += 1
    features = [network.encoder(ids, None) for ids in (tokens, changed)]
    moved = (features[0] - features[1]).abs().amax(-1)[0] > 1e-9
    assert moved.nonzero().flatten().tolist() == [4, 5, 6]
    with pytest.raises(UserError, match=r"backbone\.convolution is 4; choose an odd number"):
        model(None, convolution=4)


def test_one_projection_serves_all_layers():
    network = model(functools.partial(Linformer, k=4, sharing="layer"), layers=3)
    assert [len(layer.attention.key_map) for layer in network.encoder.layers] == [1, 0, 0]
    tokens, valid = batch()
    network(tokens, valid, valid.nonzero()).pow(2).sum().backward()
    [shared] = network.encoder.layers[0].attention.key_map
    assert shared.grad.any()


def test_orders_are_different_models_and_every_weight_learns():
    outputs = []
    tokens, valid = batch()
    for order in ("post", "pre"):
        torch.manual_seed(0)
        network = model(order=order)
        outputs.append(network(tokens, valid, valid.nonzero()))
        outputs[-1].pow(2).sum().backward()
        silent = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
        # A constant added to all keys of a query is dropped by the softmax.
        assert [name for name in silent if not name.endswith("key.bias")] == []
    assert not torch.allclose(*outputs)


def test_weights_begin_as_those_of_bert():
    network = LanguageModel(
        TextSpec(max_len=64, vocab=3000, tokenizer="ab"), Softmax, layers=1, dim=64, heads=4, ffn=64
    )
    weights = [network.encoder.embed.weight[1:], network.encoder.position.table, network.dense.weight]
    weights += [network.encoder.layers[0].feed_forward[0].weight]
    for weight in weights:
        assert 0.018 < weight.std() < 0.022
    assert not network.dense.bias.any()


def test_the_label_is_read_from_the_first_token():
    labeller, recorded = classifier(), []
    labeller.encoder.register_forward_hook(lambda _, __, out: recorded.append(out))
    tokens, valid = batch()
    out = labeller(tokens, valid)
    expected = labeller.head(torch.tanh(labeller.dense(recorded[0][:, 0])))
    torch.testing.assert_close(out, expected)
    assert out.shape == (3, 3)
    assert labeller.features(tokens, valid).shape == (3, labeller.feature_dim)
    changed = tokens.clone()
    changed[0, 5] = changed[0, 5] % 29 + 1
    assert not torch.allclose(labeller(changed, valid)[0], out[0])


# starting from other weights


def test_a_classifier_takes_the_encoder_of_a_language_model():
    source, target = model(), classifier()
    target.load_state_dict(target.adapt_state_dict(source.state_dict()))
    for name, weight in source.encoder.state_dict().items():
        assert torch.equal(weight, target.encoder.state_dict()[name])
    assert not torch.equal(target.dense.weight, source.dense.weight)
    assert target.head.out_features == 3


def test_a_classifier_takes_all_of_another():
    source, target = classifier(), classifier()
    target.load_state_dict(target.adapt_state_dict(source.state_dict()))
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, target.state_dict()[name])


def test_a_language_model_goes_on_from_another():
    source, target = model(), model()
    target.load_state_dict(target.adapt_state_dict(source.state_dict()))
    assert torch.equal(source.dense.weight, target.dense.weight)


@pytest.mark.parametrize("kind", [model, classifier])
@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"spec": TextSpec(max_len=12, vocab=30, tokenizer="ffffffffffff")}, "trained with another tokenizer"),
        (
            {"spec": TextSpec(max_len=9, vocab=30, tokenizer="a1f59ff5c415")},
            r"position.table is \[12, 16\] here and \[9",
        ),
        ({"dim": 8}, r"encoder.embed.weight is \[30, 16\] here and \[30, 8\] there"),
        ({"layers": 1}, "encoder.layers.1.* and nothing there"),
        (
            {"attention": functools.partial(Linformer, k=4)},
            r"key_map.0 is nothing here and \[4, 12\] there\); use the attention",
        ),
    ],
)
def test_weights_of_another_encoder_are_refused(kind, other, cause):
    with pytest.raises(UserError, match=cause):
        kind().adapt_state_dict(model(**other).state_dict())


def test_the_tokenizer_travels_with_the_weights():
    assert model().state_dict()["encoder.tokenizer"] == int("a1f59ff5c415", 16)
    assert model().half().encoder.tokenizer.dtype == torch.int64


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_text_is_refused():
    for spec in (DataSpec(max_len=4, vocab=5, classes=2), DataSpec(max_len=4, channels=1)):
        with pytest.raises(UserError, match="needs tokenised text"):
            LanguageEncoder(spec, Softmax, **SIZES)
    with pytest.raises(UserError, match=r"backbone.layers is 0"):
        model(layers=0)
