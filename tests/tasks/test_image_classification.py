"""Training on images: loss, accuracies, weight decay, schedule, and complete runs."""

from functools import partial

import pytest
import torch
from omegaconf import OmegaConf
from runs import composed, trained

from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.backbones.vision import ViT
from subquad.config.settings import check_settings
from subquad.data.images.digits import DigitImages
from subquad.specs import ImageSpec
from subquad.tasks.image_classification import ImageClassification
from subquad.training.schedules import constant, epoch_cosine
from subquad.utils.errors import UserError

SPEC = ImageSpec(side=8, channels=1, classes=10)
TINY = ("backbone.layers=1", "backbone.dim=16", "backbone.heads=2", "backbone.ffn=16", "trainer=cpu")


def module(attention=Softmax, spec=SPEC, class_token=False, **settings):
    backbone = partial(ViT, attention=attention, layers=2, dim=32, heads=4, ffn=32, patch=2, class_token=class_token)
    optimizer = partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.3)
    return ImageClassification(spec, backbone, optimizer, constant, **settings)


def test_smoothing_takes_a_share_of_each_target_in_training_only():
    model, scores = module(label_smoothing=0.1), torch.randn(4, 10)
    target = torch.tensor([0, 3, 9, 3])
    logs = scores.log_softmax(1)
    hard = -logs[range(4), target].mean()
    torch.testing.assert_close(model.eval().loss(scores, target), hard)
    smooth = 0.9 * hard - 0.1 * logs.mean()
    torch.testing.assert_close(model.train().loss(scores, target), smooth)
    soft = torch.nn.functional.one_hot(target, 10).float()
    torch.testing.assert_close(model.loss(scores, soft), smooth)


def test_mixed_targets_are_weighed():
    model, scores = module(), torch.randn(2, 10)
    target = torch.zeros(2, 10)
    target[0, 1], target[0, 4], target[1, 2] = 0.25, 0.75, 1
    logs = scores.log_softmax(1)
    expected = -(0.25 * logs[0, 1] + 0.75 * logs[0, 4] + logs[1, 2]) / 2
    torch.testing.assert_close(model.loss(scores, target), expected)


def test_accuracies_are_of_the_first_and_of_the_first_five():
    metric = module().new_metric(SPEC)
    scores = torch.arange(10.0).expand(4, 10)
    metric.update(scores, torch.tensor([9, 5, 4, 9]))
    assert {name: value.item() for name, value in metric.compute().items()} == {"accuracy": 0.5, "top5_accuracy": 0.75}
    assert set(module().new_metric(ImageSpec(side=8, channels=1, classes=5))) == {"accuracy"}


def test_vectors_positions_and_the_class_token_are_not_decayed():
    model = module(class_token=True)
    spared, decayed = model.optimized()
    assert spared["weight_decay"] == 0
    assert "weight_decay" not in decayed
    names = {id(p): name for name, p in model.network.model.named_parameters()}
    assert {"pos_embed", "cls_token"} <= {names[id(p)] for p in spared["params"]}
    assert all(p.ndim > 1 for p in decayed["params"])
    assert len(spared["params"]) + len(decayed["params"]) == len(list(model.parameters()))
    optimizer = model.make_optimizer(model.optimized())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0, 0.3]


def test_an_encoder_reads_patches_in_raster_order():
    from subquad.backbones.tlb import TLBEncoder

    encoder = partial(TLBEncoder, dim=8, heads=2, ffn=8, segment=5)
    network = ImageClassification(SPEC, encoder, torch.optim.AdamW, constant, patch=4).network.eval()
    assert network.encoder.max_len == 4
    images = torch.randn(2, 1, 8, 8)
    corners = [images[:, 0, row : row + 4, column : column + 4].flatten(1) for row in (0, 4) for column in (0, 4)]
    torch.testing.assert_close(network(images), network.encoder(torch.stack(corners, 1), None))


def test_a_wrong_setting_of_a_nested_node_is_named(data, outputs):
    config = composed(data, outputs, "task=cifar/cifar10", "data.augment.crop=round", "paths.run=/run")
    settings = OmegaConf.to_container(config.data, resolve=True)
    with pytest.raises(UserError, match=r"data\.augment\.crop is round; choose resized, random, padded or none"):
        check_settings("data", settings)


def test_the_schedule_is_timms():
    from timm.scheduler import CosineLRScheduler

    def optimizer():
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)

    timm_schedule = CosineLRScheduler(optimizer(), t_initial=12, lr_min=0.01, warmup_t=3, warmup_lr_init=0.001)
    ours, rates = optimizer(), []
    schedule = epoch_cosine(ours, total_steps=60, epochs=12, warmup_epochs=3, start_lr=0.001, final_lr=0.01)
    for _ in range(60):
        rates.append(ours.param_groups[0]["lr"])
        ours.step()
        schedule.step()
    expected = [timm_schedule._get_lr(epoch)[0] for epoch in range(12)]
    assert rates[::5] == pytest.approx(expected)
    assert rates[4::5] == pytest.approx(expected)
    assert ours.param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("attention", [DBA, Softmax])
@pytest.mark.slow
def test_one_batch_is_learnt_by_heart(tmp_path, attention):
    data = DigitImages(root=str(tmp_path), batch_size=16, seed=0, synthetic=True)
    data.prepare_data()
    batch = next(iter(data.train_dataloader()))
    model = module(attention)
    optimizer = model.make_optimizer(model.optimized())
    for _ in range(100):
        loss = model.loss(model(batch), batch.target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    assert (model(batch).argmax(1) == batch.target).all()


@pytest.mark.parametrize(
    "overrides",
    [
        ("task=digits", "attention=dba"),
        ("task=digits", "attention=softmax"),
        ("task=cifar/cifar10", "attention=dba", "recipe.augment.mixup=0.8", "recipe.augment.repeats=3"),
        ("task=cifar/cifar100", "attention=softmax"),
        ("task=imagenet", "attention=dba", "data.files=parquet"),
        ("task=imagenet", "attention=softmax", "scheduler.warmup_epochs=0"),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_a_run_trains_on_the_synthetic(data, outputs, overrides):
    record = trained(composed(data, outputs, *overrides, *TINY, "scale=smoke", "data=synthetic"))
    assert record.steps >= 1
    assert {"test/accuracy", "test/top5_accuracy", "val/accuracy", "val/loss", "train/loss"} <= set(record.metrics)
    assert record.config["data"]["synthetic"]
