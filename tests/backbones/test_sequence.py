"""The sequence encoder: all its settings, padding, tied layers and carries."""

import functools

import pytest
import torch
from conftest import made
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible

from subquad.attention.base import Attention
from subquad.attention.luna import Luna
from subquad.attention.softmax import Softmax
from subquad.backbones.sequence import SequenceEncoder
from subquad.blocks.layer import FeedForward
from subquad.specs import DataSpec
from subquad.utils.errors import UserError

TOKENS = DataSpec(max_len=12, vocab=7, classes=5)
SERIES = DataSpec(max_len=12, channels=3)
POOLINGS = ("cls", "cls_apart", "first", "mean", "flatten")
LENGTHS = torch.tensor([12, 7, 1])
SMALL = {"linformer": {"k": 4}, "luna": {"l": 4}, "dba": {"d_p": 4, "d_in": 8}}


def encoder(spec=TOKENS, attention=Softmax, **changes):
    settings = {"layers": 2, "dim": 16, "heads": 2, "ffn": 24} | changes
    return SequenceEncoder(spec, attention, **settings).double().eval()


def batch(spec=TOKENS, length=12):
    valid = torch.arange(length) < LENGTHS[:, None]
    if spec.vocab:
        return torch.randint(1, spec.vocab, (3, length)).masked_fill(~valid, 0), valid
    return torch.randn(3, length, spec.channels, dtype=torch.float64).masked_fill(~valid[..., None], 0), valid


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_arrangement_predicts_and_learns(pooling, order, position):
    for spec in (TOKENS, SERIES):
        model = encoder(spec, pooling=pooling, order=order, position=position, embed_norm=True)
        if model.class_token is not None:  # it begins as zeros, whose query has no gradient
            torch.nn.init.normal_(model.class_token.vector)
        out = model(*batch(spec))
        assert out.shape == (3, spec.outputs)
        out.pow(2).sum().backward()
        silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        # A constant added to all keys of a query is dropped by the softmax.
        assert [name for name in silent if not name.endswith("key.bias")] == []


def test_orders_and_positions_are_different_models():
    torch.manual_seed(1)
    tokens, valid = batch()
    shuffled = tokens[:1, torch.randperm(12)]
    outputs = {}
    for order in ("pre", "post"):
        torch.manual_seed(0)
        model = encoder(order=order, pooling="mean", position="none")
        outputs[order] = model(tokens, valid)
        torch.testing.assert_close(model(shuffled, None), model(tokens[:1], None))
    assert not torch.allclose(outputs["pre"], outputs["post"])
    for position in ("learned", "sinusoidal"):
        model = encoder(position=position, position_scale=1.0)
        assert not torch.allclose(model(shuffled, None), model(tokens[:1], None))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", ["softmax", "dba", "luna", "linformer", "transformer_ls"])
def test_padding_never_changes_a_prediction(name, pooling):
    attention = functools.partial(made("attention", name), **SMALL.get(name, {}))
    for spec in (TOKENS, SERIES):
        model = encoder(spec, attention, pooling=pooling, order="post")
        inputs, valid = batch(spec)
        clean = model(inputs, valid)
        poison = torch.randint(1, 7, inputs.shape) if spec.vocab else torch.full_like(inputs, 1e3)
        mask = valid if spec.vocab else valid[..., None]
        torch.testing.assert_close(model(torch.where(mask, inputs, poison), valid), clean, rtol=1e-9, atol=1e-9)
        shorter = model(inputs[1:2, :9], valid[1:2, :9])
        torch.testing.assert_close(shorter, clean[1:2], rtol=1e-9, atol=1e-9)


def test_tied_layers_are_one_layer():
    tied, free = encoder(tie_layers=True, layers=3), encoder(layers=3)
    assert tied.layers[0] is tied.layers[2]
    assert free.layers[0] is not free.layers[2]
    layer = sum(p.numel() for p in tied.layers[0].parameters())
    assert sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in tied.parameters()) == 2 * layer


def test_the_latent_of_the_first_layer_reaches_the_second():
    model = encoder(attention=functools.partial(Luna, l=4), pooling="mean")
    inputs, valid = batch()
    recorded = []
    model.layers[1].attention.register_forward_hook(lambda _, given, __: recorded.append(given[3]))
    before = model(inputs, valid)
    with torch.no_grad():
        model.layers[0].attention.latent.normal_()
    assert not torch.allclose(model(inputs, valid), before)
    assert recorded[0].shape == (3, 4, 16)
    assert not torch.allclose(recorded[0], recorded[1])


def test_without_attention_no_token_sees_another():
    model = encoder(attention=None, pooling="flatten")
    assert not [module for module in model.modules() if isinstance(module, Attention)]
    tokens, _ = batch()
    changed = tokens.clone()
    changed[0, 0] = changed[0, 0] % 6 + 1
    features = []
    model.head.register_forward_hook(lambda _, given, __: features.append(given[0].view(3, 12, 16)))
    model(tokens, None)
    model(changed, None)
    assert torch.equal(features[0][:, 1:], features[1][:, 1:])
    assert not torch.equal(features[0][0, 0], features[1][0, 0])


def test_init_std_draws_the_maps_outside_the_attention_alone():
    torch.manual_seed(0)
    plain = encoder(dim=64, heads=4, ffn=64)
    torch.manual_seed(0)
    drawn = encoder(dim=64, heads=4, ffn=64, init_std=0.5)
    for (name, a), b in zip(plain.named_parameters(), drawn.parameters(), strict=True):
        outside = name.startswith("head") or "feed_forward.0" in name or "feed_forward.3" in name
        assert torch.equal(a, b) != outside, name
    weight = drawn.layers[0].feed_forward[0]
    assert 0.45 < weight.weight.std() < 0.55
    assert not weight.bias.any()


def test_cls_apart_gives_the_token_to_the_last_layer_alone_and_names_it():
    expected = {"cls": [(13, False), (13, False)], "cls_apart": [(12, False), (13, True)]}
    for tied in (False, True):
        for pooling, calls in expected.items():
            model, recorded = encoder(pooling=pooling, tie_layers=tied), []
            for layer in {*model.layers}:
                layer.register_forward_hook(
                    lambda _, given, __, recorded=recorded: recorded.append((given[0].shape[1], given[1].class_token))
                )
            model(*batch())
            assert recorded == calls


def test_a_class_token_that_is_kept_apart_passes_no_norm_ahead_of_the_attention():
    """After the last layer it is c + attention and what the feed-forward net adds; at other tokens nothing changes."""
    model, caught = encoder(pooling="cls_apart", layers=1), []
    torch.nn.init.normal_(model.class_token.vector)
    layer = model.layers[0]
    layer.attention.register_forward_hook(lambda _, given, __: caught.append(given[0]))
    layer.register_forward_hook(lambda _, given, __: caught.append(given[0]))
    model(*batch())
    source, x = caught
    torch.testing.assert_close(source[:, 0], model.class_token.vector.expand(3, -1))
    torch.testing.assert_close(source[:, 1:], layer.attention_norm(x[:, 1:]))


def test_positions_are_those_of_the_tokens_alone_where_the_class_token_has_none():
    results = {pooling: len(encoder(pooling=pooling, position="learned").position.table) for pooling in POOLINGS}
    assert results == dict.fromkeys(POOLINGS, 12) | {"cls": 13}


@pytest.mark.usefixtures("unchecked")
def test_a_hidden_head_and_data_without_inputs():
    assert encoder(head_hidden=9).head[0].out_features == 9
    with pytest.raises(UserError, match="nothing to embed"):
        encoder(DataSpec(max_len=3))


@pytest.mark.parametrize(
    ("attention", "changes", "message"),
    [
        (
            functools.partial(made("attention", "linformer"), k=4),
            {"position": "none"},
            "Linformer was built for .* 12 ",
        ),
        (Softmax, {"position": "learned"}, "learned 12 positions and was given 13 tokens"),
        (Softmax, {"position": "none", "pooling": "flatten"}, "reads 12 tokens side by side and was given 13"),
    ],
)
def test_what_has_no_more_places_refuses_longer_inputs(attention, changes, message):
    with pytest.raises(UserError, match=message):
        encoder(attention=attention, **changes)(torch.ones(1, 13, dtype=torch.int64), None)


def test_longer_inputs_are_read_as_by_a_model_built_for_them():
    model, longer = (
        encoder(DataSpec(max_len=length, vocab=9, classes=3), position="sinusoidal", position_scale=0.5).eval()
        for length in (12, 30)
    )
    longer.load_state_dict(model.state_dict())
    tokens = torch.randint(1, 9, (2, 30))
    torch.testing.assert_close(model(tokens, None), longer(tokens, None))


@pytest.mark.parametrize("length", [1023, 1024, 1025, 2500])
def test_feed_forward_in_chunks_is_the_whole(length):
    net = FeedForward(4, 6, 0.0).double().eval()
    x = torch.randn(2, length, 4, dtype=torch.float64)
    sizes = []
    net[1].register_forward_hook(lambda _, given, __: sizes.append(given[0].shape[1]))
    whole = net(x)
    with torch.no_grad():
        torch.testing.assert_close(net(x), whole)
    assert sizes[0] == length
    assert max(sizes[1:]) <= 1024


def test_the_first_token_is_read_as_it_stands():
    """Without a class token, and without attention no other token reaches the prediction."""
    model = encoder(pooling="first", attention=None).eval()
    assert model.class_token is None
    tokens = torch.randint(1, 5, (2, 9))
    other = tokens.clone()
    other[:, 1:] = other[:, 1:] % 4 + 1
    assert torch.equal(model(tokens, None), model(other, None))
    other[:, 0] = other[:, 0] % 4 + 1
    assert not torch.allclose(model(tokens, None), model(other, None))
