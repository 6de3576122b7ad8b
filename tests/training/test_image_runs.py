"""Runs on images from end to end: pretrained weights, larger images, encoders, evaluation mode, small images."""

import logging
from pathlib import Path

import pytest
import torch
from runs import composed, one_thread, trained, weights

from subquad.training.evaluation import evaluate
from subquad.utils.errors import UserError

DIGITS = ("task=digits", "data=synthetic", "scale=smoke", "trainer=cpu")


def folder(config):
    return Path(config.paths.run)


@pytest.fixture(scope="module")
def softmax_run(tmp_path_factory, data):
    """A ViT with softmax attention on digits."""
    config = composed(data, tmp_path_factory.mktemp("images") / "outputs", *DIGITS, "attention=softmax")
    trained(config)
    return folder(config)


@pytest.mark.slow
def test_ecoformer_starts_from_a_run_with_softmax(softmax_run, data, outputs, caplog):
    overrides = ("attention=ecoformer", f"ckpt_path={softmax_run}/checkpoints/best.ckpt", "optimizer.lr=0")
    config = composed(data, outputs, *DIGITS, *overrides)
    with caplog.at_level(logging.INFO):
        trained(config)
    assert "2 x EcoFormer: took query, value, out; new: anchors, mean, planes, fitted." in caplog.text
    before, after = weights(softmax_run), weights(folder(config))
    place = "network.model.blocks.1.attn.attention"
    for own, theirs in (("shared", "query"), ("value", "value"), ("out", "out")):
        assert torch.equal(after[f"{place}.{own}.weight"], before[f"{place}.projections.{theirs}.weight"])
    assert torch.equal(after["network.model.head.weight"], before["network.model.head.weight"])
    assert after[f"{place}.fitted"]


@pytest.mark.slow
def test_a_run_starts_from_a_file_of_weights_and_is_evaluated_without_it(softmax_run, data, outputs, tmp_path):
    file = tmp_path / "weights.pth"
    from timm.models.vision_transformer import VisionTransformer

    theirs = VisionTransformer(
        img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=64, depth=2, num_heads=4, mlp_ratio=2.0,
        class_token=False, global_pool="avg",
    )  # fmt: skip
    torch.save(theirs.state_dict(), file)
    config = composed(data, outputs, *DIGITS, "attention=linear", f"backbone.pretrained={file}", "optimizer.lr=0")
    run, record = folder(config), trained(config)  # the folder is named after the content of the file
    after = weights(run)
    query = theirs.blocks[1].attn.qkv.weight.chunk(3)[0]
    assert torch.equal(after["network.model.blocks.1.attn.attention.projections.query.weight"], query)
    file.unlink()
    with one_thread():
        _, value, _ = evaluate(run, "test")
    assert value == record.metrics["test/accuracy"]


def test_larger_images_are_evaluated(softmax_run):
    with one_thread():
        same, recorded = evaluate(softmax_run, "test", {"size": 8})[1:]
        assert same == recorded
        assert 0 <= evaluate(softmax_run, "test", {"size": 16})[1] <= 1


def test_an_attention_bound_to_the_length_refuses_larger_images(data, outputs):
    config = composed(data, outputs, *DIGITS, "attention=linformer", "attention.k=4")
    trained(config)
    cause = r"do not fit these data \(size mismatch for .*key_map.*larger images than in training"
    with one_thread(), pytest.raises(UserError, match=cause):
        evaluate(folder(config), "test", {"size": 16})


@pytest.mark.parametrize("backbone", ["blrp", "tlb"])
def test_encoders_of_sequences_read_patches_at_any_size(data, outputs, backbone):
    config = composed(data, outputs, *DIGITS, f"backbone={backbone}", "backbone.segment=5")
    record = trained(config)
    assert weights(folder(config))["network.encoder.embed.weight"].shape[1] == 4
    with one_thread():
        assert evaluate(folder(config), "test", {"size": 8})[1] == record.metrics["test/accuracy"]
        assert 0 <= evaluate(folder(config), "test", {"size": 16})[1] <= 1


@pytest.mark.slow
def test_a_network_trains_in_evaluation_mode_where_the_recipe_says_so(data, outputs, monkeypatch):
    from subquad.backbones.vision import ViT

    modes, intact = [], ViT.forward

    def noted(network, images):
        modes.append((network.training, network.model.blocks[1].training, torch.is_grad_enabled()))
        return intact(network, images)

    monkeypatch.setattr(ViT, "forward", noted)
    for eval_mode in (True, False):
        modes.clear()
        overrides = (f"+recipe.eval_mode={eval_mode}", "limits.epochs=2", "attention=softmax")
        trained(composed(data, outputs, *DIGITS, *overrides))
        training = [mode[:2] for mode in modes if mode[2]]
        assert set(training) == {(not eval_mode, not eval_mode)}
        assert len(training) == 2


PYRAMIDS = ("backbone=pvt_v2", "backbone=twins_svt", "backbone=deit_tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "backbone", "attention"),
    [
        *(("digits", backbone, "ecoformer") for backbone in PYRAMIDS),
        ("cifar/cifar10", "backbone=pvt_v2", "softmax"),
        *(
            pytest.param(task, backbone, attention, marks=pytest.mark.release)
            for backbone in PYRAMIDS
            for task, attention in (("digits", "softmax"), ("cifar/cifar10", "ecoformer"), ("cifar/cifar10", "softmax"))
            if (task, backbone, attention) != ("cifar/cifar10", "backbone=pvt_v2", "softmax")
        ),
    ],
)
def test_small_images_train_in_every_vision_backbone(data, outputs, task, backbone, attention):
    overrides = (
        f"task={task}",
        backbone,
        f"attention={attention}",
        "data.size=32",
        "limits.cases=8",
        "recipe.batch_size=30",
    )
    config = composed(data, outputs, *DIGITS[1:], *(overrides[:4] if task == "digits" else overrides))
    record = trained(config)
    assert record.steps >= 1
    assert 0 <= record.metrics["test/accuracy"] <= 1
    state = weights(folder(config))
    fitted = [tensor for name, tensor in state.items() if name.endswith("fitted")]
    assert all(fitted)
    assert bool(fitted) == (attention == "ecoformer")
    assert all(tensor.isfinite().all() for tensor in state.values())


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (("backbone=pvt_v2",), r"images of 8 x 8 are too small; set data\.size=32 or more"),
        (("backbone=twins_svt",), r"images of 8 x 8 are too small; set data\.size=32 or more"),
        (("backbone=deit_tiny",), r"patches of 16 do not divide 8 x 8; set backbone\.patch, or data\.size"),
        (
            ("backbone=blrp", "recipe.sizes.digits.patch=3"),
            r"Patches of 3 do not fill images of 8 x 8; set task\.module\.patch",
        ),
    ],
    ids=str,
)
def test_images_that_are_too_small_are_refused(data, outputs, overrides, cause):
    with pytest.raises(UserError, match=cause):
        trained(composed(data, outputs, *DIGITS, *overrides))
