"""Weights of trained image models in models with other attentions, heads, colours and sizes."""

import copy
import logging
import re
from functools import partial

import huggingface_hub
import pytest
import timm
import torch
from conftest import made, mechanisms
from safetensors.torch import save_file

from subquad.attention.attention_bn import AttentionBN
from subquad.attention.ecoformer import EcoFormer
from subquad.attention.linformer import Linformer
from subquad.attention.reformer import Reformer
from subquad.attention.softmax import Softmax
from subquad.backbones import pretrained
from subquad.backbones.vision import Pyramid, ViT
from subquad.specs import ImageSpec, Pattern, Site
from subquad.utils.errors import UserError

SPEC = ImageSpec(side=64, channels=3, classes=5)
SIZES = {"layers": 2, "dim": 32, "heads": 4, "ffn": 64, "patch": 16, "class_token": True}
SMALL = partial(ViT, **SIZES)
PLAIN = {
    "pvt_v2_b0": lambda: timm.create_model("pvt_v2_b0", num_classes=5, sr_ratios=(1, 1, 1, 1)),
    "twins_svt_small": lambda: timm.create_model("twins_svt_small", num_classes=5, sr_ratios=(1, 1, 1, 1)),
    "vit": lambda: timm.models.vision_transformer.VisionTransformer(
        img_size=64, patch_size=16, num_classes=5, embed_dim=32, depth=2, num_heads=4, mlp_ratio=2
    ),
}


def drawn(model):
    """The model with random weights and biases."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def ours(name, pretrained, attention=Softmax, spec=SPEC, **settings):
    if name == "vit":
        return SMALL(spec, attention, pretrained=str(pretrained), **settings).eval()
    return Pyramid(spec, attention, Softmax, name, pretrained=str(pretrained), **settings).eval()


@pytest.fixture
def file(tmp_path):
    """Writes a model's weights to a file."""

    def write(weights, name="weights.pth"):
        place = tmp_path / name
        save_file(weights, place) if name.endswith("safetensors") else torch.save(weights, place)
        return place

    return write


@pytest.mark.parametrize("name", PLAIN)
def test_softmax_with_weights_from_a_file_is_timms_model(name, file):
    original, images = drawn(PLAIN[name]()), torch.randn(2, 3, 64, 64)
    if name == "twins_svt_small":
        for stage, side in zip(original.blocks, (16, 8, 4, 2), strict=True):
            for block in stage:
                block.attn.ws = side  # one window
    expected = original(images)
    torch.testing.assert_close(ours(name, file({"model": original.state_dict()}))(images), expected)
    recentred = ours(name, file(original.state_dict(), "w.safetensors"), partial(AttentionBN, beta=0.0))
    torch.testing.assert_close(recentred(images), expected, rtol=1e-4, atol=1e-5)


def original_names(state):
    """Names as in the code of PVTv2 and EcoFormer: one fused map, and reductions of keys, which are ignored."""
    renamed = {}
    for name, tensor in state.items():
        name = re.sub(r"^patch_embed\.", "patch_embed1.", name)
        name = re.sub(r"^stages\.(\d)\.downsample", lambda m: f"patch_embed{int(m[1]) + 1}", name)
        name = re.sub(r"^stages\.(\d)\.blocks", lambda m: f"block{int(m[1]) + 1}", name)
        name = re.sub(r"^stages\.(\d)\.norm", lambda m: f"norm{int(m[1]) + 1}", name)
        renamed[name.replace("dwconv", "dwconv.dwconv")] = tensor
    return renamed


def test_the_names_of_pvts_own_code_and_of_ecoformers_are_read(file):
    original, images = drawn(PLAIN["pvt_v2_b0"]()), torch.randn(2, 3, 64, 64)
    weights = original_names(original.state_dict())
    place = "block1.0.attn"
    weights |= {f"{place}.sr.weight": torch.zeros(32, 32, 8, 8), f"{place}.norm.weight": torch.zeros(32)}
    torch.testing.assert_close(ours("pvt_v2_b0", file(weights))(images), original(images))
    for kind in ("weight", "bias"):
        parts = weights.pop(f"{place}.q.{kind}"), weights.pop(f"{place}.kv.{kind}")
        weights[f"{place}.qkv.{kind}"] = torch.cat(parts)
    torch.testing.assert_close(ours("pvt_v2_b0", file(weights))(images), original(images))


def test_ecoformer_takes_the_queries_and_the_log_says_what_is_new(file, caplog):
    original = drawn(PLAIN["pvt_v2_b0"]())
    with caplog.at_level(logging.INFO):
        model = ours("pvt_v2_b0", file(original.state_dict()), EcoFormer)
    source, own = original.stages[1].blocks[0].attn, model.model.stages[1].blocks[0].attn.attention
    assert torch.equal(own.shared.weight, source.q.weight)
    assert torch.equal(own.value.weight, source.kv.weight[64:])
    assert torch.equal(own.value.bias, source.kv.bias[64:])
    assert torch.equal(own.out.weight, source.proj.weight)
    messages = [record.message for record in caplog.records if " x " in record.message]
    assert messages == [
        "6 x EcoFormer: took query, value, out; new: anchors, mean, planes, fitted.",
        "2 x Softmax: took query, key, value, out.",
    ]


def site(**changes):
    sizes = {"dim": 32, "heads": 4, "query_len": 16, "context_len": 16, "grid": (4, 4)} | changes
    return Site(pattern=Pattern.SELF, **sizes)


@pytest.mark.parametrize("name", mechanisms())
def test_every_attention_takes_maps_or_none(name):
    """Maps with a counterpart get the given weights, and nothing else changes."""
    attention = made("attention", name)(site=site())
    before = copy.deepcopy(attention.state_dict())
    maps = {part: (torch.randn(32, 32), torch.randn(32)) for part in ("query", "key", "value", "out")}
    taken, rest = pretrained.transfer_weights(maps, attention)
    after = dict([*attention.named_parameters(), *attention.named_buffers()])
    changed = {key for key in after if not torch.equal(after[key], before[key])}
    assert changed == after.keys() - set(rest)
    assert bool(taken) == (name not in ("fnet", "hydra", "mega"))
    if hasattr(attention, "projections"):
        assert taken == ["query", "key", "value", "out"]
        own = attention.projections
        for part in taken:
            assert torch.equal(getattr(own, part).weight, maps[part][0])
            assert torch.equal(getattr(own, part).bias, maps[part][1])


def test_the_maps_that_lie_side_by_side_in_reformer_are_those_of_each_head():
    attention, x = Reformer(site()), torch.randn(2, 7, 32)
    maps = {part: (torch.randn(32, 32), torch.randn(32)) for part in ("query", "key", "value", "out")}
    assert pretrained.transfer_weights(maps, attention)[0] == ["query", "value", "out"]
    query, value = attention.query_value(x).unflatten(-1, (4, -1)).chunk(2, -1)
    for results, part in ((query, "query"), (value, "value")):
        torch.testing.assert_close(results.flatten(-2), torch.nn.functional.linear(x, *maps[part]))


def test_other_classes_colours_and_sizes(file):
    original = drawn(PLAIN["vit"]())
    place = file(original.state_dict())
    model = ours("vit", place, spec=ImageSpec(side=96, channels=1, classes=3))
    assert model.model.head.weight.shape == (3, 32)
    grey = torch.randn(2, 1, 96, 96)
    original.set_input_size(img_size=96)
    expected = original.forward_features(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(model.model.forward_features(grey), expected, rtol=1e-4, atol=1e-5)


def test_four_heads_take_the_weights_of_other_heads_and_are_another_model(file):
    original, images = drawn(PLAIN["vit"]()), torch.randn(2, 3, 64, 64)
    model = ours("vit", file(original.state_dict()), heads=2)
    assert torch.equal(model.model.blocks[0].attn.attention.projections.out.weight, original.blocks[0].attn.proj.weight)
    assert not torch.allclose(model(images), original(images), atol=1e-3)


@pytest.mark.parametrize(
    ("weights", "cause"),
    [
        ({}, r"do not fit this model \(cls_token is \[1, 1, 32\] here and nothing there\)"),
        ({"network.model.head.weight": torch.zeros(1)}, "checkpoint of a run of Subquad; give it as ckpt_path"),
        ({"epoch": 3}, "does not hold weights alone"),
        ([1, 2], "holds no weights"),
    ],
)
def test_files_that_do_not_fit_are_refused(file, weights, cause):
    with pytest.raises(UserError, match=cause):
        ours("vit", file(weights))


def test_what_is_no_file_and_what_is_of_another_size_are_refused(file, tmp_path):
    with pytest.raises(UserError, match=r"There is no file .*gone\.pth; set backbone\.pretrained"):
        ours("vit", tmp_path / "gone.pth")
    (tmp_path / "words.pth").write_text("not weights")
    with pytest.raises(UserError, match=r"words\.pth holds no weights"):
        ours("vit", tmp_path / "words.pth")
    place = file(PLAIN["vit"]().state_dict())
    with pytest.raises(UserError, match=r"class token and this model has none; set backbone\.class_token=true"):
        ours("vit", place, class_token=False)
    with pytest.raises(UserError, match=r"mlp\.fc1\.weight is \[48, 32\] here and \[64, 32\] there"):
        ours("vit", place, ffn=48)
    with pytest.raises(UserError, match=r"is nothing here and \[32\] there"):
        ours("vit", place, layers=1)


def test_weights_of_the_hub_are_fetched_beforehand(monkeypatch, tmp_path):
    source, place = drawn(timm.create_model("pvt_v2_b0")), tmp_path / "model.safetensors"
    asked = []

    def download(repository, file, local_files_only):
        asked.append((repository, file, local_files_only))
        if local_files_only and not place.exists():
            raise FileNotFoundError
        if not repository.startswith("timm/pvt"):
            raise OSError("no network")
        save_file(source.state_dict(), place)
        return place

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    missing = r"weights of pvt_v2_b0 are not on this machine; .* run `python scripts/prepare\.py` with the task and the"
    with pytest.raises(UserError, match=missing):
        ours("pvt_v2_b0", "hub")
    pretrained.fetch("hub", "pvt_v2_b0")
    network = ours("pvt_v2_b0", "hub")
    assert asked == [("timm/pvt_v2_b0.in1k", "model.safetensors", local) for local in (True, False, True)]
    assert torch.equal(network.model.stages[3].blocks[1].mlp.fc1.weight, source.stages[3].blocks[1].mlp.fc1.weight)
    cause = r"deit_tiny_patch16_224 cannot be fetched \(no network\); get model\.safetensors of .*deit_tiny.* and set"
    with pytest.raises(UserError, match=cause):
        pretrained.fetch("hub:deit_tiny_patch16_224", None)
    pretrained.fetch("a/file.pth", None)
    with pytest.raises(UserError, match="no name at timm; write which weights"):
        ours("vit", "hub")
    with pytest.raises(UserError, match="timm has no model vit_of_nobody"):
        ours("vit", "hub:vit_of_nobody")


def test_a_run_with_softmax_becomes_one_with_ecoformer(caplog):
    trained, fresh = drawn(SMALL(SPEC, Softmax)), SMALL(SPEC, EcoFormer)
    before = copy.deepcopy(fresh.state_dict())
    with caplog.at_level(logging.INFO):
        weights = fresh.adapt_state_dict(trained.state_dict())
    assert "2 x EcoFormer: took query, value, out; new: anchors, mean, planes, fitted." in caplog.text
    assert all(torch.equal(fresh.state_dict()[name], before[name]) for name in before)
    fresh.load_state_dict(weights)
    old, new = trained.model.blocks[1], fresh.model.blocks[1]
    assert torch.equal(new.attn.attention.shared.weight, old.attn.attention.projections.query.weight)
    assert torch.equal(new.attn.attention.value.bias, old.attn.attention.projections.value.bias)
    assert torch.equal(new.mlp.fc1.weight, old.mlp.fc1.weight)
    assert torch.equal(fresh.model.head.weight, trained.model.head.weight)
    assert not new.attn.attention.fitted


def test_a_run_goes_on_with_the_same_attention_on_other_classes():
    trained = drawn(SMALL(SPEC, EcoFormer))
    for module in trained.modules():
        if isinstance(module, EcoFormer):
            module.fitted.fill_(True)
    fresh = SMALL(ImageSpec(side=64, channels=3, classes=9), EcoFormer)
    head = fresh.model.head.weight.clone()
    fresh.load_state_dict(fresh.adapt_state_dict(trained.state_dict()))
    own, original = (model.model.blocks[0].attn.attention for model in (fresh, trained))
    assert all(torch.equal(own.state_dict()[name], original.state_dict()[name]) for name in original.state_dict())
    assert torch.equal(fresh.model.head.weight, head)


def test_a_run_of_another_model_is_refused():
    with pytest.raises(UserError, match=r"weights of ckpt_path do not fit this model \(.*fc1\.weight is \[48, 32\]"):
        SMALL(SPEC, Softmax, ffn=48).adapt_state_dict(SMALL(SPEC, EcoFormer).state_dict())


def test_a_vit_reads_larger_images_unless_its_attention_is_bound_to_the_length():
    trained, images = drawn(SMALL(SPEC, Softmax)), torch.randn(2, 3, 128, 128)
    larger = ImageSpec(side=128, channels=3, classes=5)
    model = SMALL(larger, Softmax).eval()
    model.load_state_dict(trained.state_dict())
    trained.model.set_input_size(img_size=128)
    trained.side = 128
    for block in trained.model.blocks:
        block.attn.attention.site = site(query_len=65, context_len=65)
    torch.testing.assert_close(model(images), trained(images))
    with pytest.raises(RuntimeError, match=r"size mismatch for .*key_map"):
        SMALL(larger, Linformer).load_state_dict(SMALL(SPEC, Linformer).state_dict())
