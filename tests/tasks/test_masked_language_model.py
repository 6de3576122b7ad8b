"""Masked language models: metrics, learning, and reproducible resuming of interrupted runs."""

import functools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from runs import TINY, composed, crash, identical, prepared, trained, weights

from subquad import records
from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.backbones.language import LanguageModel
from subquad.backbones.sequence import SequenceEncoder
from subquad.measure.memory import LiveTensors
from subquad.ops import cross_entropy
from subquad.specs import UNMASKED, MaskedBatch, TextSpec
from subquad.tasks.masked_language_model import MaskedLanguageModel, Perplexity
from subquad.training.schedules import constant
from subquad.utils.errors import UserError

SPEC = TextSpec(max_len=20, vocab=50, tokenizer="ab")
TEXT = ("task=mlm/text", "data=synthetic", "scale=smoke", *TINY)


def language_model(attention=Softmax):
    sizes = {"layers": 2, "dim": 32, "heads": 4, "ffn": 64, "dropout": 0.0, "attention_dropout": 0.0}
    backbone = functools.partial(LanguageModel, attention=attention, **sizes)
    return MaskedLanguageModel(SPEC, backbone, torch.optim.Adam, constant)


def masked(rows=16):
    valid = torch.arange(20) < torch.randint(10, 21, (rows, 1))
    tokens = torch.randint(5, 50, (rows, 20))
    asked = valid & (torch.rand(rows, 20) < 0.2)
    target = torch.where(asked, tokens, UNMASKED)
    return MaskedBatch(torch.where(asked, 4, tokens) * valid, valid, target)


def test_perplexity_counts_tokens_and_not_batches():
    metric, logits, target = Perplexity(), torch.randn(9, 50) * 3, torch.randint(0, 50, (9,))
    for part in (slice(0, 1), slice(1, 9), slice(9, 9)):
        metric.update(logits[part], target[part])
    assert metric.compute().item() == pytest.approx(F.cross_entropy(logits, target).exp().item())
    of_batches = torch.stack([F.cross_entropy(logits[:1], target[:1]), F.cross_entropy(logits[1:], target[1:])]).mean()
    assert metric.compute().item() != pytest.approx(of_batches.exp().item(), rel=0.01)


def test_the_loss_is_the_mean_over_the_hidden_tokens():
    module, batch = language_model().eval(), masked()
    logits = module.network(batch.inputs, batch.valid, torch.ones_like(batch.valid).nonzero()).view(16, 20, 50)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=UNMASKED)
    torch.testing.assert_close(module.loss(module(batch), module.targets(batch)), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_cross_entropy_a_few_rows_at_a_time(rows, dtype, monkeypatch):
    monkeypatch.setattr(cross_entropy, "NUMBERS_AT_ONCE", 4 * 50)
    logits, target = (torch.randn(rows, 50) * 5).to(dtype).requires_grad_(), torch.randint(0, 50, (rows,))
    loss_sum = cross_entropy.summed_cross_entropy(logits, target)
    expected = F.cross_entropy(logits.to(loss_sum.dtype), target, reduction="sum")
    torch.testing.assert_close(loss_sum, expected)
    assert loss_sum.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(*(torch.autograd.grad(loss / 7, logits)[0] for loss in (loss_sum, expected)))


@pytest.mark.parametrize("training", [True, False])
def test_the_loss_holds_logits_and_their_gradient_only(training, monkeypatch):
    monkeypatch.setattr(cross_entropy, "NUMBERS_AT_ONCE", 1 << 14)
    module, metric = language_model(), Perplexity()
    logits = torch.randn(400, 1000, dtype=torch.bfloat16, requires_grad=training)
    target = torch.randint(0, 1000, (400,))
    with LiveTensors() as memory:
        if training:
            module.loss(logits, target).backward()
        else:
            metric.update(logits, target)
    assert memory.peak < (1.3 if training else 0.3) * logits.nbytes


def test_a_batch_without_hidden_tokens_costs_nothing():
    module, batch = language_model(), masked()
    batch = MaskedBatch(batch.inputs, batch.valid, torch.full_like(batch.target, UNMASKED))
    loss = module.training_step(batch)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("attention", [Softmax, functools.partial(DBA, d_p=4, d_in=8)], ids=["softmax", "dba"])
def test_one_batch_is_fitted(attention):
    module, batch = language_model(attention), masked()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        loss = module.loss(module(batch), module.targets(batch))
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("attention", ["dba", "softmax", "linformer_layer"])
def test_the_recorded_perplexity_is_exact_whatever_the_batches(data, outputs, attention):
    config = composed(data, outputs, *TEXT, f"attention={attention}", "data.eval_batch_size=3")
    metrics = trained(config).metrics
    module = MaskedLanguageModel(
        prepared(config).spec, functools.partial(_backbone, config), torch.optim.Adam, constant
    ).eval()
    module.load_state_dict(weights(Path(config.paths.run)))
    nll = hits = tokens = 0.0
    for row in prepared(composed(data, outputs, *TEXT, "data.eval_batch_size=1")).test_dataloader():
        target = row.target[row.target != UNMASKED]
        with torch.no_grad():
            logits = module(row)
        nll += F.cross_entropy(logits, target, reduction="sum").item()
        hits += (logits.argmax(-1) == target).sum().item()
        tokens += len(target)
    assert metrics["test/perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)
    assert metrics["test/accuracy"] == pytest.approx(hits / tokens, rel=1e-5)
    assert metrics["val/loss"] == pytest.approx(math.log(metrics["val/perplexity"]), rel=1e-5)


def _backbone(config, spec):
    from hydra.utils import instantiate

    return instantiate(config.backbone, _convert_="all")(spec=spec)


@pytest.mark.slow
def test_the_neighbours_of_a_hidden_token_are_put_to_use(data, outputs):
    """The perplexity falls below that of token frequencies, because each synthetic text has one subject."""
    overrides = (
        "attention=softmax",
        "limits.steps=120",
        "recipe.steps_per_epoch=60",
        "backbone.dim=64",
        "backbone.ffn=64",
    )
    overrides += ("optimizer.lr=0.01", "scheduler.warmup=10", "backbone.dropout=0.0", "backbone.order=pre")
    record = trained(composed(data, outputs, *TEXT, *overrides))
    assert record.metrics["val/perplexity"] < record.baselines["token frequencies"] / 2
    assert record.metrics["test/perplexity"] < record.baselines["token frequencies"] / 2


@pytest.mark.slow
def test_a_run_that_crashed_ends_as_one_that_did_not(data, outputs, tmp_path):
    overrides = (*TEXT, "attention=softmax", "limits.steps=6", "recipe.steps_per_epoch=3", "optimizer.lr=0.01")
    whole, cut = (
        composed(data, tmp_path / "whole", *overrides),
        composed(data, outputs, *overrides, "data.num_workers=1"),
    )
    trained(whole)
    with crash(4), pytest.raises(RuntimeError, match="plug"):
        trained(cut)
    trained(composed(data, outputs, *overrides))
    one, other = Path(whole.paths.run), Path(cut.paths.run)
    assert identical(weights(one, "last.ckpt"), weights(other, "last.ckpt"))
    assert records.read(one).metrics == records.read(other).metrics


def test_an_encoder_with_one_output_for_the_row_is_refused(data, outputs):
    with pytest.raises(UserError, match="needs one output per token, but TLBEncoder has one"):
        trained(
            composed(data, outputs, "task=mlm/text", "data=synthetic", "scale=smoke", "trainer=cpu", "backbone=tlb")
        )
    backbone = functools.partial(SequenceEncoder, attention=Softmax, layers=1, dim=8, heads=2, ffn=8)
    with pytest.raises(UserError, match="backbone=language_model"):
        MaskedLanguageModel(SPEC, backbone, torch.optim.Adam, constant)
