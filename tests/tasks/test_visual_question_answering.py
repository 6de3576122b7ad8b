"""Visual question answering: loss and accuracy as published, fitting a batch, complete runs on synthetic data."""

import functools
from pathlib import Path

import pytest
import torch
from runs import TINY, composed, crash, identical, trained, weights

from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.backbones.mcan import MCAN
from subquad.data.vqa import vqa_files
from subquad.data.vqa.scoring import evaluate
from subquad.data.vqa.vqa import VQAv2
from subquad.specs import VQABatch, VQASpec
from subquad.tasks.visual_question_answering import VisualQuestionAnswering, VQAAccuracy
from subquad.training.schedules import constant
from subquad.utils.errors import UserError

SPEC = VQASpec(image_len=6, image_dim=5, text_len=4, classes=3, vocab=9)


def task(attention=Softmax, spec=SPEC):
    backbone = functools.partial(
        MCAN, attention=attention, exact=Softmax, layers=1, dim=32, heads=2, ffn=32, dropout=0.0
    )
    return VisualQuestionAnswering(spec, backbone, torch.optim.Adam, constant)


def batch(rows=4):
    target = torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.6, 0.9], [0.0, 0.0, 1.0], [0.6, 0.6, 0.0]])[:rows]
    return VQABatch(
        image=torch.randn(rows, 6, 5), image_valid=None, question=torch.randint(2, 9, (rows, 4)), question_valid=None,
        scores=target, answer_type=torch.tensor([0, 2, 1, 2])[:rows], target=target,
    )  # fmt: skip


def test_training_minimises_the_sum_and_logs_the_mean():
    module, whole = task(), batch()
    outputs = module(whole)
    chance = outputs.sigmoid()
    expected = -(whole.target * chance.log() + (1 - whole.target) * (1 - chance).log()).sum()
    loss = module.training_step(whole)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(module.loss(outputs, whole.target), expected / 4)
    rest = module.training_step(batch(2))
    torch.testing.assert_close(module.train_loss.compute(), (loss + rest).detach() / 6)


def test_accuracy_is_the_mean_of_scores_as_a_whole_and_by_type():
    module, whole = task(), batch()
    for part in (whole, batch(1)):
        outputs = torch.tensor([[0.0, 3.0, 1.0], [9.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, 0.0, -1.0]])[: len(part)]
        module._count(module.val_metric, outputs, part)
    accuracies = {name: value.item() for name, value in module.val_metric.compute().items()}
    scores = [0.3, 0.0, 1.0, 0.6, 0.3]
    expected = {"accuracy": sum(scores) / 5, "accuracy_yes_no": 0.3, "accuracy_number": 1.0, "accuracy_other": 0.3}
    assert accuracies == pytest.approx(expected)


def test_sums_of_scores_are_exact():
    metric = VQAAccuracy(None)
    for _ in range(100):
        metric.update(torch.full((1000,), 0.3), torch.zeros(1000, dtype=torch.int64))
    assert metric.tenths.item() == 300_000


def test_a_type_without_questions_is_not_logged(monkeypatch):
    module, logged = task(), {}
    monkeypatch.setattr(module, "log_dict", logged.update)
    module._count(module.test_metric, torch.zeros(1, 3), batch(1))
    module.log_metric("test", module.test_metric)
    assert logged.keys() == {"test/accuracy", "test/accuracy_yes_no"}
    module._count(module.test_metric, torch.zeros(3, 3), batch(3))
    assert module.test_metric["accuracy"].questions == 3


def test_the_metric_is_the_evaluator_on_the_strings_of_the_answers(data):
    """The accuracies overall and by type equal those of the server, to two decimals, for arbitrary predictions."""
    source = VQAv2(root=str(data), synthetic=True, batch_size=7, seed=0)
    source.prepare_data()
    answers = source._cache.facts["answers"]
    module = task(spec=source.spec)
    pairs = vqa_files.read_split(source.folder, "val2014", genuine=False)
    generator = torch.Generator().manual_seed(0)
    predicted = []
    for part in source.val_dataloader():
        outputs = torch.rand(part.scores.shape, generator=generator) + part.scores  # mostly correct predictions
        module._count(module.val_metric, outputs, part)
        predicted += [answers[i] for i in outputs.argmax(1).tolist()]
    accuracies = {name: round(100 * value.item(), 2) for name, value in module.val_metric.compute().items()}
    official = evaluate(
        (answer, annotation.answers, annotation.answer_type)
        for answer, (_, annotation) in zip(predicted, pairs, strict=True)
    )
    assert accuracies == pytest.approx(
        {
            "accuracy": official["overall"],
            "accuracy_yes_no": official["yes/no"],
            "accuracy_number": official["number"],
            "accuracy_other": official["other"],
        },
        abs=0.006,
    )


def test_a_place_that_does_not_exist_is_refused(data, outputs):
    with pytest.raises(UserError, match=r"backbone\.studied is"):
        trained(composed(data, outputs, *SMOKE, "backbone.studied=[middle]"))


def test_an_encoder_of_one_sequence_is_refused(data, outputs):
    with pytest.raises(UserError, match=r"TLBEncoder reads .* and the data of this task are"):
        trained(composed(data, outputs, *SMOKE[:3], "backbone=tlb"))


@pytest.mark.slow
def test_dba_learns_a_batch(data):
    source = VQAv2(root=str(data), synthetic=True, batch_size=8, seed=0)
    source.prepare_data()
    module, one = task(functools.partial(DBA, d_p=8, d_in=16), source.spec), next(iter(source.train_dataloader()))
    optimizer = torch.optim.Adam(module.parameters(), lr=5e-3)
    first = module.loss(module(one), one.target).item()
    for _ in range(100):
        optimizer.zero_grad()
        module.training_step(one).backward()
        optimizer.step()
    # Soft targets cannot be fitted below their own entropy.
    entropy = torch.nn.functional.binary_cross_entropy(one.target, one.target, reduction="sum").item() / len(one)
    assert module.loss(module(one), one.target).item() - entropy < 0.1 < first - entropy
    assert (module(one).argmax(1) == one.target.argmax(1)).float().mean() > 0.9


@pytest.mark.slow
def test_the_stand_in_is_learnt_by_heart(data):
    """The metric over all questions reaches 95 % of the maximum that the ten annotators' answers allow."""
    source = VQAv2(root=str(data), synthetic=True, batch_size=24, seed=0)
    source.prepare_data()
    module = task(functools.partial(DBA, d_p=8, d_in=16), source.spec)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    batches = list(source.train_dataloader())

    def score() -> float:
        with torch.no_grad():
            for part in batches:
                module._count(module.val_metric, module(part), part)
        accuracy = module.val_metric.compute()["accuracy"].item()
        module.val_metric.reset()
        return accuracy

    best = torch.cat([part.scores.max(1).values for part in batches])
    assert len(best) == 120
    before = score()
    for _ in range(30):
        for part in batches:
            optimizer.zero_grad()
            module.training_step(part).backward()
            optimizer.step()
    assert before < 0.7 * best.mean() < 0.95 * best.mean() < score()


SMOKE = ("task=vqa_v2", "data=synthetic", "scale=smoke", *TINY)


@pytest.mark.parametrize(
    "overrides",
    [
        ("attention=dba",),
        ("attention=softmax", "protocol=clean"),
        ("experiment=dba/vqa", "attention.d_in=8"),
        pytest.param(("attention=local", "data.text=albert_tuned"), marks=pytest.mark.slow),
        pytest.param(("recipe=mcan_large", "limits.epochs=2"), marks=pytest.mark.slow),
    ],
    ids=lambda overrides: overrides[0],
)
def test_runs_train_and_record_accuracy_by_type(data, outputs, overrides):
    record = trained(composed(data, outputs, *SMOKE, *overrides))
    for split in ("val", "test"):
        names = [f"{split}/accuracy{kind}" for kind in ("", "_yes_no", "_number", "_other")]
        assert all(0 <= record.metrics[name] <= 1 for name in names)
    assert record.steps > 0
    assert {name.split('"')[0] for name in record.baselines} == {"always ", "most common of the question type"}


@pytest.mark.slow
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(data, tmp_path):
    overrides = (*SMOKE, "attention=dba", "limits.epochs=3")
    whole = composed(data, tmp_path / "whole", *overrides)
    expected = trained(whole)
    broken = composed(data, tmp_path / "broken", *overrides)
    with crash(3), pytest.raises(RuntimeError, match="plug"):  # in the middle of the second epoch
        trained(composed(data, tmp_path / "broken", *overrides))
    record = trained(composed(data, tmp_path / "broken", *overrides))
    assert identical(*(weights(Path(config.paths.run)) for config in (whole, broken)))
    assert record.metrics == expected.metrics
