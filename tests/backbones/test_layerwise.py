"""Activation checkpointing of every backbone: the same model in less memory."""

import copy
import functools

import pytest
import torch
from torch.testing import assert_close

from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.attention.yoso import SampledYOSO
from subquad.backbones.blrp import BLRPEncoder
from subquad.backbones.dual_encoder import DualEncoder
from subquad.backbones.language import LanguageModel
from subquad.backbones.layerwise import layers_of, recompute_layers
from subquad.backbones.mcan import MCAN
from subquad.backbones.mvts import MVTSEncoder
from subquad.backbones.sequence import SequenceEncoder
from subquad.backbones.tlb import TLBEncoder
from subquad.backbones.vision import Pyramid, ViT
from subquad.measure.memory import LiveTensors
from subquad.specs import DataSpec, ImageSpec, TextSpec, VQASpec

TOKENS, SERIES = DataSpec(max_len=24, vocab=9, classes=3), DataSpec(max_len=24, channels=4, classes=3)
TEXT, IMAGES = TextSpec(max_len=24, vocab=9, tokenizer="ab"), ImageSpec(side=32, channels=3, classes=4)
QUESTIONS = VQASpec(image_len=24, image_dim=6, text_len=8, classes=5, vocab=9)
SIZES = {"layers": 3, "dim": 16, "heads": 2, "ffn": 64, "dropout": 0.2}
SMALL = functools.partial(DBA, d_p=4, d_in=4)


def tokens(rows=3, n=24):
    valid = torch.arange(n) < torch.randint(2, n + 1, (rows, 1))
    return torch.randint(1, 9, (rows, n)) * valid, valid


def series(rows=3):
    _, valid = tokens(rows)
    return torch.randn(rows, 24, 4) * valid[..., None], valid


def images():
    return (torch.randn(2, 3, 32, 32),)


def questions():
    cells, (words, valid) = tokens()[1], tokens(n=8)
    return torch.randn(3, 24, 6), cells, words, valid


MODELS = {
    "sequence": (lambda: SequenceEncoder(TOKENS, SMALL, attention_dropout=0.1, pooling="cls", **SIZES), tokens, 3),
    "tied": (lambda: SequenceEncoder(TOKENS, SMALL, tie_layers=True, **SIZES), tokens, 1),
    "sampled": (lambda: SequenceEncoder(TOKENS, SampledYOSO, **SIZES), tokens, 3),
    "mvts": (lambda: MVTSEncoder(SERIES, SMALL, **SIZES), series, 3),
    "language": (
        lambda: LanguageModel(TEXT, Softmax, **SIZES),
        lambda: (*tokens(), (torch.rand(3, 24) < 0.3).nonzero()),
        3,
    ),
    "two towers": (
        lambda: DualEncoder(TOKENS, functools.partial(SequenceEncoder, attention=SMALL, **SIZES)),
        lambda: (*tokens(), *tokens()),
        3,
    ),
    "mcan": (lambda: MCAN(QUESTIONS, SMALL, Softmax, **SIZES), questions, 6),
    "vit": (
        lambda: ViT(IMAGES, SMALL, layers=3, dim=16, heads=2, ffn=64, patch=8, dropout=0.2, drop_path=0.3),
        images,
        3,
    ),
    "pvt": (lambda: Pyramid(IMAGES, SMALL, Softmax, "pvt_v2_b0", drop_path=0.2), images, 8),
    "twins": (lambda: Pyramid(IMAGES, Softmax, Softmax, "twins_svt_small", drop_path=0.2), images, 18),
    "tlb": (lambda: TLBEncoder(TOKENS, 16, 2, 64, 0.2, segment=5, latents=3), tokens, 2),
    "blrp": (lambda: BLRPEncoder(TOKENS, 16, 2, 64, 0.2, segment=5, latents=3), tokens, 2),
}


def trained_once(model, inputs):
    """Outputs, gradients, buffers and the next random number."""
    torch.manual_seed(3)
    outputs = model(*inputs)
    outputs.square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return outputs.detach(), grads, dict(model.named_buffers()), torch.rand(1)


@pytest.mark.parametrize("name", MODELS)
def test_a_recomputed_model_is_the_same_model(name):
    make, batch, layers = MODELS[name]
    plain = make().train()
    assert len(layers_of(plain)) == layers
    recomputed = copy.deepcopy(plain)
    names = list(recomputed.state_dict())
    recompute_layers(recomputed)
    assert list(recomputed.state_dict()) == names
    inputs = batch()
    for _ in range(2):
        for model in (plain, recomputed):
            model.zero_grad(set_to_none=True)
        expected, results = trained_once(plain, inputs), trained_once(recomputed, inputs)
        assert_close(results, expected, rtol=0, atol=0)
    for model in (plain, recomputed):
        model.eval()
    with torch.no_grad():
        assert_close(recomputed(*inputs), plain(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sequence", "mvts", "mcan", "vit", "tlb"])
@pytest.mark.slow
def test_activations_inside_layers_are_not_kept(name):
    make, batch, _ = MODELS[name]
    model, inputs = make().train(), batch()

    def kept():
        model.zero_grad(set_to_none=True)
        with LiveTensors() as memory:
            outputs = model(*inputs)
            live = memory.live
            outputs.sum().backward()
        return live

    kept()  # allocated once
    before = kept()
    recompute_layers(model)
    assert kept() < 0.65 * before


def test_buffers_are_those_of_one_pass_and_random_numbers_those_of_the_forward_pass():
    model = MODELS["mvts"][0]().train()
    recompute_layers(model)
    before = model.state_dict()["layers.0.attention_norm.num_batches_tracked"].item()
    model(*series()).sum().backward()
    norm = model.layers[0].attention_norm
    assert norm.num_batches_tracked.item() == before + 1
    assert norm.momentum == 0.1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # raised inside torch.compile
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ("sequence", "vit", "mcan")])
def test_a_recomputed_model_compiles(name):
    torch.compiler.reset()
    make, batch, _ = MODELS[name]
    model, inputs = make().eval(), batch()  # without dropout, whose masks a compiler draws in its own order
    outputs, grads, *_ = trained_once(model, inputs)
    model.zero_grad(set_to_none=True)
    recompute_layers(model)
    model.compile(backend="aot_eager")
    results, its_grads, *_ = trained_once(model, inputs)
    assert_close(results, outputs, rtol=1e-4, atol=1e-5)
    for key, grad in grads.items():
        assert_close(its_grads[key], grad, rtol=1e-3, atol=1e-4, msg=key)
