"""Classification and regression fit a few rows in seconds."""

import functools
import itertools

import pytest
import torch
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible

from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.backbones.mvts import MVTSEncoder
from subquad.backbones.sequence import SequenceEncoder
from subquad.specs import DataSpec, SequenceBatch
from subquad.tasks.classification import Classification
from subquad.tasks.regression import Regression
from subquad.training.schedules import constant
from subquad.utils.errors import UserError

TOKENS = DataSpec(max_len=20, vocab=16, classes=10)
SERIES = DataSpec(max_len=12, channels=3)


def fitted(module, batch, steps):
    """The loss after training on one batch."""
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module.loss(module(batch), batch.target)
        loss.backward()
        optimizer.step()
    return loss.item()


def tokens():
    valid = torch.arange(20) < torch.randint(5, 21, (16, 1))
    return SequenceBatch(torch.randint(1, 16, (16, 20)) * valid, valid, torch.randint(0, 10, (16,)))


def classification(attention):
    encoder = functools.partial(SequenceEncoder, attention=attention, layers=2, dim=32, heads=4, ffn=64, token_std=1.0)
    return Classification(TOKENS, encoder, torch.optim.Adam, constant)


@pytest.mark.parametrize("attention", [Softmax, functools.partial(DBA, d_p=4, d_in=8)], ids=["softmax", "dba"])
@pytest.mark.slow
def test_classification_fits_one_batch(attention):
    module, batch = classification(attention), tokens()
    assert fitted(module, batch, 80) < 0.1
    assert torch.equal(module.predictions(module(batch)), batch.target)


def regression():
    encoder = functools.partial(
        MVTSEncoder, attention=Softmax, layers=1, dim=16, heads=2, ffn=32, dropout=0.0, norm="layer"
    )
    return Regression(SERIES, encoder, torch.optim.Adam, constant)


@pytest.mark.slow
def test_regression_fits_one_batch():
    valid = torch.arange(12) < torch.randint(4, 13, (16, 1))
    batch = SequenceBatch(torch.randn(16, 12, 3) * valid[..., None], valid, torch.randn(16) * 5)
    module = regression()
    assert module(batch).shape == (16, 1)
    assert fitted(module, batch, 200) < 0.5


def test_rmse_is_the_root_over_the_whole_split():
    metric = Regression.new_metric(None, SERIES)
    metric.update(torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3))
    metric.update(torch.tensor([6.0]), torch.zeros(1))
    assert metric.compute().item() == pytest.approx((50 / 4) ** 0.5)


@pytest.mark.parametrize("ends", [[], [1], [2, 5, 15]], ids=str)
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_scores_do_not_depend_on_the_batches(kind, ends, monkeypatch):
    """The metrics of 16 rows with known outputs do not depend on the batches."""
    module = regression() if kind == "regression" else classification(Softmax)
    batch, outputs = tokens(), torch.randn(16, 1 if kind == "regression" else 10)
    target = torch.randn(16) if kind == "regression" else batch.target
    logged = {}
    monkeypatch.setattr(module, "log", lambda name, value: logged.update({name: float(value)}))
    for start, end in itertools.pairwise([0, *ends, 16]):
        rows = slice(start, end)
        monkeypatch.setattr(module.network, "forward", lambda *_, rows=rows: outputs[rows])
        part = SequenceBatch(batch.inputs[rows], batch.valid[rows], target[rows])
        module.validation_step(part)
        module.test_step(part)
    module.on_validation_epoch_end()
    module.on_test_epoch_end()
    if kind == "regression":
        square = float((outputs[:, 0] - target).square().mean())
        expected = {"val/loss": square, "val/rmse": square**0.5, "test/rmse": square**0.5}
    else:
        right = float((outputs.argmax(1) == target).float().mean())
        loss = float(torch.nn.functional.cross_entropy(outputs, target))
        expected = {"val/loss": loss, "val/accuracy": right, "test/accuracy": right}
    assert logged == pytest.approx(expected)


def test_outputs_that_are_no_numbers_have_no_score(monkeypatch):
    module, batch, outputs = classification(Softmax), tokens(), torch.randn(16, 10)
    outputs[3, 4], outputs[5] = torch.nan, torch.inf
    monkeypatch.setattr(module.network, "forward", lambda *_: outputs)
    module.test_step(batch)
    with pytest.raises(UserError, match="2 outputs of the model on the test rows are infinite or NaN"):
        module.on_test_epoch_end()


def test_accuracy_is_a_fraction_of_rows():
    metric = Classification.new_metric(None, TOKENS)
    metric.update(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 0]))
    metric.update(torch.tensor([5]), torch.tensor([4]))
    assert metric.compute().item() == 0.5


def test_classes_are_needed_for_classification():
    with pytest.raises(UserError, match="real-valued"):
        Classification.new_metric(None, SERIES)


def test_shared_weights_are_counted_once():
    tied = functools.partial(
        SequenceEncoder, attention=Softmax, layers=3, dim=32, heads=4, ffn=64, token_std=1.0, tie_layers=True
    )
    free = classification(Softmax)
    one_layer = sum(p.numel() for p in free.network.layers[0].parameters())
    assert free.parameter_count - Classification(TOKENS, tied, torch.optim.Adam, constant).parameter_count == one_layer


def test_the_training_loss_of_an_epoch_is_a_mean_over_rows():
    module, batch = classification(Softmax), tokens()
    small = SequenceBatch(batch.inputs[:3], batch.valid[:3], batch.target[:3])
    losses = [module.training_step(part).item() for part in (batch, small)]
    expected = (16 * losses[0] + 3 * losses[1]) / 19
    assert module.train_loss.compute().item() == pytest.approx(expected)


@pytest.mark.parametrize(("setting", "mode"), [(True, {}), ("reduce-overhead", {"mode": "reduce-overhead"})])
def test_the_network_is_compiled_in_the_mode_that_is_set(monkeypatch, setting, mode):
    calls = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **settings: calls.append((type(self), settings)))
    backbone = functools.partial(SequenceEncoder, attention=Softmax, layers=1, dim=8, heads=2, ffn=8)
    Classification(TOKENS, backbone, torch.optim.Adam, constant, compile_model=setting)
    assert calls == [(SequenceEncoder, {"backend": "inductor", **mode})]
