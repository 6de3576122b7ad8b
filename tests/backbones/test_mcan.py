"""MCAN: published parameter counts, the layers written out, padding, and the sites of the mechanism."""

import functools

import pytest
import torch
from torch import nn

from subquad.attention.dba import DBA
from subquad.attention.linear import Linear as LinearAttention
from subquad.attention.local import Local
from subquad.attention.luna import Luna
from subquad.attention.softmax import Softmax
from subquad.backbones.mcan import MCAN, AttentionReadout
from subquad.blocks.mcan_norm import UnbiasedLayerNorm
from subquad.blocks.question_encoder import WordLSTM, question_encoder
from subquad.data.vqa import synthetic_vqa
from subquad.specs import VQASpec
from subquad.utils.errors import UserError

SPEC = VQASpec(image_len=12, image_dim=5, text_len=7, classes=9, vocab=20)
SIZES = {"layers": 2, "dim": 16, "heads": 2, "ffn": 24}
SMALL_DBA = functools.partial(DBA, d_p=3, d_in=8)


def stack(attention, layers, dim, ffn, **settings):
    """Parameters in the attention layers at the sizes of the real task."""
    spec = VQASpec(image_len=608, image_dim=2048, text_len=14, classes=3129, vocab=2)
    with torch.device("meta"):
        model = MCAN(spec, attention, Softmax, layers=layers, dim=dim, heads=8, ffn=ffn, **settings)
    return model.stack_parameters


@pytest.mark.parametrize(
    ("layers", "dim", "ffn", "image_self", "expected"),
    [
        (6, 512, 2048, True, 44_138_496),  # MCAN-small, printed as 44M
        (6, 1024, 4096, True, 176_357_376),
        (6, 512, 2048, False, 37_828_608),  # the two-attention layout of DBA's baselines, printed as 38M
        (3, 256, 1024, True, 5_529_600),
        (3, 256, 1024, False, 4_738_560),
    ],
)
def test_published_counts_of_softmax(layers, dim, ffn, image_self, expected):
    assert stack(Softmax, layers, dim, ffn, image_self=image_self) == expected


def test_the_count_of_dba_is_the_printed_one():
    def count(**settings):
        return stack(functools.partial(DBA, d_p=24, d_in=64, **settings), 3, 256, 1024, image_self=False)

    linear, r, reconstruction = 256 * 257, 256 * 64, 24 * 257
    own = 4 * linear + 2 * r + 2 * reconstruction
    guided = 5 * linear + 2 * r + reconstruction
    feed_forward, norms = 256 * 1024 + 1024 + 1024 * 256 + 256, 12 * 2 * 256
    latents = 2 * 24 * 256  # of both stacks
    assert count(r_shared=False) == 3 * (own + guided) + 6 * feed_forward + norms + latents
    assert 5_150_000 <= count(r_shared=False) == 5_200_344 < 5_250_000
    assert count() == 5_102_040  # with one R, as the equations: 5.1M


def inputs(batch=3, images=12, words=7):
    return torch.randn(batch, images, 5), None, torch.randint(2, 20, (batch, words)), None


def model(attention=Softmax, spec=SPEC, **settings):
    return MCAN(spec, attention, Softmax, **{**SIZES, "dropout": 0.0} | settings).eval()


def test_the_layers_written_out():
    """Question first, all its layers; then the image, each layer reading the last of the question."""
    network = model()
    image, _, ids, _ = inputs()

    def attend(attention, x, context):
        p = attention.projections
        q, k, v = (
            f(y).unflatten(-1, (2, 8)).transpose(1, 2) for f, y in ((p.query, x), (p.key, context), (p.value, context))
        )
        return p.out(((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def feed(net, x):
        return net[3](net[0](x).relu())

    def norm(module, x):
        std = ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1, keepdim=True).div(x.shape[-1] - 1).sqrt()
        return module.weight * (x - x.mean(-1, keepdim=True)) / (std + 1e-6) + module.bias

    for part in network.modules():
        if isinstance(part, UnbiasedLayerNorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    text, _ = network.question.lstm(network.question.embed(ids))
    for layer in network.text_layers:
        text = norm(layer.after["own"].norm, text + attend(layer.own, text, text))
        text = norm(layer.after["feed_forward"].norm, text + feed(layer.feed_forward, text))
    x = network.image_map(image)
    for layer in network.image_layers:
        x = norm(layer.after["own"].norm, x + attend(layer.own, x, x))
        x = norm(layer.after["guided"].norm, x + attend(layer.guided, x, text))
        x = norm(layer.after["feed_forward"].norm, x + feed(layer.feed_forward, x))

    def read(readout, tokens):
        scores = readout.score[3](readout.score[0](tokens).relu())
        return readout.map((scores.softmax(1) * tokens).sum(1))

    joined = read(network.text_readout, text) + read(network.image_readout, x)
    expected = network.head(norm(network.norm, joined))
    torch.testing.assert_close(network(image, None, ids, None), expected, rtol=1e-4, atol=1e-5)


def test_the_norm_is_torchs_with_another_deviation():
    x = torch.randn(4, 6, 16, dtype=torch.float64)
    norm = UnbiasedLayerNorm(16, eps=0.0).double()
    expected = nn.functional.layer_norm(x, (16,), eps=0.0) * (15 / 16) ** 0.5
    torch.testing.assert_close(norm(x), expected)
    assert UnbiasedLayerNorm(16)(torch.ones(1, 1, 16)).eq(0).all()


def prefix(lengths, size):
    return torch.arange(size) < torch.tensor(lengths)[:, None]


EVERYWHERE = {"softmax": Softmax, "dba": SMALL_DBA, "linear": LinearAttention, "luna": functools.partial(Luna, l=3)}


@pytest.mark.parametrize("image_self", [True, False])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_padding_never_changes_a_prediction(name, image_self):
    network = model(EVERYWHERE[name], image_self=image_self).double()
    image, _, ids, _ = inputs()
    image = image.double()
    cells, words = prefix([12, 8, 5], 12), prefix([3, 7, 2], 7)
    padded = network(image, cells, ids, words)
    changed = network(image.masked_fill(~cells[..., None], 9.0), cells, ids.masked_fill(~words, 3), words)
    torch.testing.assert_close(padded, changed)
    for row, (n, m) in enumerate(((12, 3), (8, 7), (5, 2))):
        alone = network(image[row : row + 1, :n], None, ids[row : row + 1, :m], None)
        torch.testing.assert_close(padded[row : row + 1], alone)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_rows_without_a_real_token_stay_finite(name):
    network = model(EVERYWHERE[name])
    image, _, ids, _ = inputs()
    out = network(image, prefix([12, 0, 5], 12), ids, prefix([3, 7, 0], 7))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def kinds(network):
    """The mechanism at each place of the first layers."""
    text, image = network.text_layers[0], network.image_layers[0]
    return {"self_text": type(text.own), "self_image": type(image.own), "cross": type(image.guided)}


def test_a_mechanism_stands_where_it_is_defined_for():
    local = functools.partial(Local, window=3)
    assert kinds(model(SMALL_DBA)) == dict.fromkeys(("self_text", "self_image", "cross"), DBA)
    assert kinds(model(local)) == {"self_text": Local, "self_image": Local, "cross": Softmax}


@pytest.mark.parametrize("places", [["cross"], ["self_image"], ["self_text", "cross"], []])
def test_or_only_where_it_is_asked_for(places):
    results = kinds(model(SMALL_DBA, studied=places))
    assert {place for place, kind in results.items() if kind is DBA} == {*places}
    assert {kind for place, kind in results.items() if place not in places} == {Softmax}


def test_asked_for_where_it_is_not_defined_is_refused():
    with pytest.raises(UserError, match="no cross-attention form"):
        model(functools.partial(Local, window=3), studied=["cross"])


def test_without_self_attention_image_tokens_meet_in_the_readout_only():
    network = model(image_self=False)
    assert kinds(network)["self_image"] is type(None)
    image, _, ids, _ = inputs()
    recorded = []
    network.image_layers[-1].register_forward_hook(lambda *_, output=None: recorded.append(_[2][0]))
    network(image, None, ids, None)
    image[:, 0] += 1
    network(image, None, ids, None)
    torch.testing.assert_close(recorded[0][:, 1:], recorded[1][:, 1:])
    assert not torch.allclose(recorded[0][:, 0], recorded[1][:, 0])


def test_each_kind_of_attention_has_its_own_carry():
    """Z of layer 1 is computed from Z and the tokens of layer 0 at the same kind of site."""
    network = model(SMALL_DBA)
    carries = {}
    for number, layers in enumerate((network.text_layers, network.image_layers)):
        for depth, layer in enumerate(layers):
            layer.register_forward_hook(
                lambda _, args, out, key=(number, depth): carries.update({key: (args[3], out[1])})
            )
    network(*inputs())
    for number, used in ((0, (0,)), (1, (0, 1))):
        before, after = carries[number, 0]
        assert before == (None, None)
        for i in used:
            assert carries[number, 1][0][i] is after[i]
        assert len({id(after[i]) for i in used}) == len(used)
    assert carries[0, 0][1][1] is None


def test_the_readout_weighs_real_tokens_only():
    readout = AttentionReadout(16, 32, 0.0).eval()
    nn.init.zeros_(readout.score[3].weight)
    x = torch.randn(2, 5, 16)
    results = readout(x, prefix([5, 2], 5))
    torch.testing.assert_close(results[0], readout.map(x[0].mean(0)))
    torch.testing.assert_close(results[1], readout.map(x[1, :2].mean(0)))


def test_questions_are_read_as_the_data_ask(tmp_path):
    folder = tmp_path / "albert"
    synthetic_vqa.write_albert(folder)
    sizes = {"image_len": 12, "image_dim": 5, "text_len": 7, "classes": 9}
    network = model(spec=VQASpec(**sizes, text_dim=6))
    image = torch.randn(2, 12, 5)
    assert network(image, None, torch.randn(2, 7, 6), None).shape == (2, 9)
    tuned = model(spec=VQASpec(**sizes, vocab=40, albert=str(folder))).train()
    ids, words = torch.randint(5, 40, (2, 7)), prefix([7, 4], 7)
    tuned(image, None, ids, words).sum().backward()
    assert all(p.grad is not None for n, p in tuned.question.albert.named_parameters() if "pooler" not in n)
    tuned.eval()
    torch.testing.assert_close(tuned(image, None, ids, words), tuned(image, None, ids.masked_fill(~words, 7), words))
    with pytest.raises(UserError, match="nothing to read"):
        question_encoder(VQASpec(**sizes), 16)


def test_word_vectors_are_where_training_starts():
    vectors = torch.randn(20, 300)
    assert torch.equal(WordLSTM(20, 16, vectors).embed.weight, vectors)
    with pytest.raises(UserError, match=r"shape \[20, 300\] do not fit 21 words"):
        WordLSTM(21, 16, vectors)
