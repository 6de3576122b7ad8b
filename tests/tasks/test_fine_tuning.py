"""Fine-tuning a masked language model for classification: transferred weights, unsuitable weights, and learning."""

import functools
from pathlib import Path

import pytest
import torch
from runs import TINY, composed, prepared, trained, weights

from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.backbones.language import LanguageClassifier
from subquad.specs import SequenceBatch, TextSpec
from subquad.tasks.classification import Classification
from subquad.training.schedules import constant
from subquad.utils.errors import UserError

SMALL = ("data=synthetic", "scale=smoke", "attention=softmax", *TINY)
SENTENCES = ("task=glue/sst2", *SMALL)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, data):
    """The checkpoint of a masked language model and the folder of its tokenizer."""
    config = composed(data, tmp_path_factory.mktemp("pretrained") / "outputs", "task=mlm/text", *SMALL)
    trained(config)
    return Path(config.paths.run) / "checkpoints" / "best.ckpt", prepared(config)._cache.facts["tokenizer"]


@pytest.mark.parametrize("task", ["glue/sst2", "text/imdb"])
@pytest.mark.slow
def test_the_encoder_of_a_language_model_is_taken_over(data, outputs, pretrained, task):
    checkpoint, tokenizer = pretrained
    overrides = (f"task={task}", *SMALL, f"ckpt_path={checkpoint}", f"data.tokenizer={tokenizer}", "optimizer.lr=0")
    config = composed(data, outputs, *overrides)
    trained(config)
    start, given = weights(Path(config.paths.run)), torch.load(checkpoint, weights_only=True)["state_dict"]
    encoder = [name for name in start if name.startswith("network.encoder.")]
    assert len(encoder) > 10
    assert all(torch.equal(start[name], given[name]) for name in encoder)
    assert not torch.equal(start["network.dense.weight"], given["network.dense.weight"])
    assert start["network.head.weight"].shape == (2, 16)


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        (
            "data.vocab=300",
            "another tokenizer than the one of these data; set data.tokenizer to its folder",
        ),
        ("data.max_len=32", r"position.table is \[32, 16\] here and \[64, 16\] there"),
        ("backbone.ffn=8", r"feed_forward.0.weight is \[8, 16\] here and \[16, 16\] there"),
        ("attention=dba", "use the attention, the recipe's sizes and the data.max_len of their run"),
    ],
)
def test_weights_that_do_not_fit_are_refused(data, outputs, pretrained, word, cause):
    checkpoint, tokenizer = pretrained
    same = () if word.startswith("data.vocab") else (f"data.tokenizer={tokenizer}",)
    with pytest.raises(UserError, match=cause):
        trained(composed(data, outputs, *SENTENCES, f"ckpt_path={checkpoint}", *same, word))


@pytest.mark.slow
def test_a_classifier_goes_on_from_a_classifier(data, outputs, tmp_path):
    first = composed(data, outputs, *SENTENCES)
    trained(first)
    source = Path(first.paths.run) / "checkpoints" / "best.ckpt"
    second = composed(data, tmp_path / "second", *SENTENCES, f"ckpt_path={source}", "optimizer.lr=0", "seed=1")
    trained(second)
    start, given = weights(Path(second.paths.run)), weights(Path(first.paths.run))
    assert torch.equal(start["network.head.weight"], given["network.head.weight"])


@pytest.mark.parametrize(("task", "mechanism"), [("glue/qnli", "attention=dba"), ("glue/qqp", "backbone=tlb")])
def test_other_attentions_train_too(data, outputs, task, mechanism):
    overrides = ("backbone.dim=16", "backbone.heads=2", "backbone.ffn=16", "trainer=cpu")
    record = trained(composed(data, outputs, f"task={task}", "data=synthetic", "scale=smoke", mechanism, *overrides))
    assert 0 <= record.metrics["test/accuracy"] <= 1
    assert record.steps == 4


def test_the_word_that_decides_is_found(data, outputs):
    overrides = (
        "limits.steps=60",
        "recipe.steps_per_epoch=30",
        "optimizer.lr=0.01",
        "scheduler.warmup=5",
        "limits.cases=null",
    )
    record = trained(composed(data, outputs, *SENTENCES, *overrides))
    assert record.metrics["test/accuracy"] > 0.95


@pytest.mark.parametrize("attention", [Softmax, functools.partial(DBA, d_p=4, d_in=8)], ids=["softmax", "dba"])
def test_one_batch_is_fitted(attention):
    spec = TextSpec(max_len=20, vocab=50, classes=2, tokenizer="ab")
    backbone = functools.partial(
        LanguageClassifier, attention=attention, layers=2, dim=32, heads=4, ffn=64, dropout=0.0
    )
    module = Classification(spec, backbone, torch.optim.Adam, constant)
    valid = torch.arange(20) < torch.randint(5, 21, (16, 1))
    batch = SequenceBatch(torch.randint(1, 50, (16, 20)) * valid, valid, torch.randint(0, 2, (16,)))
    optimizer = torch.optim.Adam(module.parameters(), lr=5e-3)
    for _ in range(50):
        optimizer.zero_grad()
        loss = module.loss(module(batch), batch.target)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
