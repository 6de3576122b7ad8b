"""How torch computes a run: what the settings select, that they are undone, and that they change rounding only."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate
from runs import TINY, composed, identical, prepared, trained, weights
from torch import nn
from torch.testing import assert_close

from subquad import records
from subquad.backbones.vision import ImageBackbone
from subquad.data.microbatches import Microbatch
from subquad.measure.inputs import random_batch
from subquad.specs import DataSpec, ImageBatch, ImageSpec, SequenceBatch
from subquad.tasks.supervised import Supervised
from subquad.training.callbacks import time_estimate
from subquad.training.evaluation import evaluate
from subquad.training.lightning_data import TrainedOn
from subquad.training.runtime import Runtime
from subquad.utils.errors import UserError

MOTIONS = ("task=uea/basic_motions", "attention=softmax", "scale=smoke", "limits.epochs=2", *TINY)
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def switches():
    """torch's global settings that a run may change."""
    return {
        "float32": torch.get_float32_matmul_precision(),
        "convolutions": torch.backends.cudnn.allow_tf32,
        "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "workspace": os.environ.get(WORKSPACE),
    }


def test_a_cpu_computes_as_before_and_a_gpu_as_the_recipe_asks():
    plain, normed = nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))
    on_cpu = Runtime().resolved(plain, gpu=False, recipe="high")
    assert (on_cpu.float32_precision, on_cpu.channels_last, on_cpu.pad_lengths) == ("highest", False, None)
    on_gpu = Runtime().resolved(plain, gpu=True, recipe="high")
    assert (on_gpu.float32_precision, on_gpu.channels_last, on_gpu.pad_lengths) == ("high", False, 128)
    assert Runtime().resolved(normed, gpu=True, recipe="highest").pad_lengths is None
    assert Runtime(float32_precision="medium").resolved(plain, gpu=False, recipe="high").float32_precision == "medium"


@pytest.mark.parametrize("deterministic", [False, True])
def test_settings_hold_inside_the_block_and_are_undone_after_an_error(deterministic, monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    before = switches()
    runtime = Runtime(float32_precision="high", deterministic=deterministic).resolved(nn.Linear(1, 1), False, "highest")
    inside = {}

    def fail():
        with runtime.applied(nn.Linear(1, 1)):
            inside.update(switches())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == {
        "float32": "high", "convolutions": True, "cudnn_attention": False, "deterministic": deterministic,
        "cudnn": (deterministic, False), "workspace": ":4096:8" if deterministic else None,
    }  # fmt: skip
    assert switches() == before


def test_an_operator_that_is_not_deterministic_is_named():
    runtime = Runtime(deterministic=True).resolved(nn.Linear(1, 1), False, "highest")
    refused = r"^put_.* has no deterministic implementation in torch; set runtime\."
    with pytest.raises(UserError, match=refused), runtime.applied(nn.Linear(1, 1)):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    with pytest.raises(RuntimeError, match="something else"), runtime.applied(nn.Linear(1, 1)):
        raise RuntimeError("something else")


@pytest.mark.slow
def test_a_deterministic_run_is_the_same_run_and_its_record_says_how_it_was_computed(data, outputs, monkeypatch):
    intact, seen = Supervised.training_step, []

    def watched(self, batch):
        seen.append(switches())
        return intact(self, batch)

    monkeypatch.setattr(Supervised, "training_step", watched)
    before = switches()
    plain = trained(composed(data, outputs, *MOTIONS))
    config = composed(data, outputs / "again", *MOTIONS, "runtime.deterministic=true")
    record = trained(config)
    assert switches() == before
    assert not seen[0]["deterministic"]
    assert seen[-1]["deterministic"]
    assert not seen[0]["cudnn_attention"]
    assert record.fingerprint == plain.fingerprint
    assert identical(weights(Path(config.paths.run)), weights(next((outputs / "runs").rglob("best.ckpt")).parents[1]))
    assert record.runtime == {
        "float32_precision": "highest", "cudnn_attention": False, "deterministic": True, "channels_last": False,
        "pad_lengths": None,
    }  # fmt: skip
    assert evaluate(Path(config.paths.run), "test")[1:] == (record.metrics["test/accuracy"],) * 2


def test_a_run_of_a_version_without_these_settings_is_evaluated(data, outputs):
    config = composed(data, outputs, *MOTIONS)
    record, run = trained(config), Path(config.paths.run)
    old = {key: value for key, value in vars(record).items() if key not in ("runtime", "files")}
    old["config"] = {key: value for key, value in record.config.items() if key != "runtime"}
    records.write_json(run / records.RESULT, old)
    assert records.read(run).runtime == {}
    assert evaluate(run, "test")[1] == record.metrics["test/accuracy"]


PADDED = {
    "lra/listops": ("attention=reformer",),
    "glue/qqp": ("attention=dba", "data=synthetic"),
    "lra/retrieval": ("attention=luna", "data=synthetic", "data.max_len=1000"),
    "vqa_v2": ("attention=dba", "data=synthetic"),
    "uea/japanese_vowels": ("attention=linformer", "backbone.norm=layer", "data.pad=batch"),
    "lra/text": ("backbone=blrp", "data=synthetic", "data.max_len=1000"),
}


@pytest.mark.parametrize("task", PADDED)
def test_padding_to_a_multiple_changes_rounding_only(data, outputs, task):
    config = composed(data, outputs, f"task={task}", "scale=smoke", *PADDED[task])
    rows = prepared(config)
    torch.manual_seed(0)
    network = instantiate(config.task.module, _convert_="all")(spec=rows.spec).network.eval()
    changed = 0
    for batch in list(rows.train_dataloader())[:8]:
        longer = batch.padded(11, rows.spec)
        for name, mask, limit in batch.padding:
            length, before = getattr(longer, name).shape[1], getattr(batch, name).shape[1]
            assert length in (before, getattr(rows.spec, limit)) or (length % 11 == 0 and 0 < length - before < 11)
            changed += length > before
            if getattr(longer, mask) is not None:
                assert not getattr(longer, mask)[:, before:].any()
        with torch.no_grad():
            assert_close(network(*longer.network_inputs), network(*batch.network_inputs), rtol=1e-4, atol=1e-5)
    assert changed


def test_a_batch_without_padding_keeps_its_length_and_has_no_mask():
    batch = SequenceBatch(torch.ones(2, 9, dtype=torch.long), None, torch.zeros(2, dtype=torch.long))
    assert batch.padded(8, DataSpec(max_len=64, vocab=3, classes=2)) is batch


def test_batches_reach_the_device_in_the_form_of_the_settings():
    spec = DataSpec(max_len=30, vocab=3, classes=2)
    batch = SequenceBatch(
        torch.ones(2, 9, dtype=torch.long), torch.arange(9) < torch.tensor([[9], [4]]), torch.zeros(2).long()
    )
    waited = []

    class Copied(SequenceBatch):
        def to(self, device, non_blocking=False):
            waited.append(not non_blocking)
            return batch

    micro = Microbatch(Copied(batch.inputs, batch.valid, batch.target), 2, 2, None, True)
    data = TrainedOn(SimpleNamespace(spec=spec), Runtime(pad_lengths=8, channels_last=True))
    there = data.transfer_batch_to_device(micro, torch.device("cpu"), 0)
    assert waited == [False]
    assert (there.weight, there.batch.inputs.shape, there.batch.valid.sum().item()) == (2, (2, 16), 13)
    images = ImageBatch(torch.rand(2, 3, 4, 4), torch.zeros(2, dtype=torch.long))
    there = data.transfer_batch_to_device(images, torch.device("cpu"), 0)
    assert there.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there.images, images.images)


@pytest.mark.parametrize("backbone", ["pvt_v2", "twins_svt", "deit_tiny"])
def test_channels_last_changes_rounding_only(data, outputs, backbone):
    config = composed(
        data, outputs, "task=cifar/cifar100", "scale=smoke", "attention=attention_conv2d", f"backbone={backbone}"
    )
    spec = ImageSpec(side=32, channels=3, classes=10)
    torch.manual_seed(0)
    network = instantiate(config.backbone, _convert_="all")(spec=spec).eval()
    assert isinstance(network, ImageBackbone)
    assert Runtime().resolved(network, gpu=True, recipe="highest").channels_last
    images, found = random_batch(network, spec, 2).images, []
    for channels_last in (False, True):
        network.zero_grad(set_to_none=True)
        with Runtime(channels_last=channels_last).resolved(network, False, "highest").applied(network):
            out = network(images)
            out.square().sum().backward()
        found.append([out, *(p.grad.clone() for p in network.parameters() if p.grad is not None)])
    weight = next(part for part in network.modules() if isinstance(part, nn.Conv2d)).weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    for plain, last in zip(*found, strict=True):
        assert_close(last, plain, rtol=1e-3, atol=1e-3 * plain.abs().max().item() + 1e-6)


def test_the_estimate_waits_for_the_device_in_the_first_steps_only(monkeypatch):
    waited = []
    monkeypatch.setattr(time_estimate.torch.cuda, "synchronize", waited.append)
    module, estimate = SimpleNamespace(device=torch.device("cuda", 0)), time_estimate.TimeEstimate(None)
    trainer = SimpleNamespace(
        accumulate_grad_batches=1, is_global_zero=True, estimated_stepping_batches=10, global_step=4
    )
    for step in range(9):
        estimate.on_train_batch_start(trainer, module, None, step)
        estimate.on_train_batch_end(trainer, module, None, None, step)
    assert len(waited) == 2 * 4
