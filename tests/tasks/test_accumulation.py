"""A batch that goes through the model in parts trains to the same numbers."""

from pathlib import Path

import pytest
import torch
from runs import TINY, composed, crash, trained, weights

from subquad import records

PLAIN = ("backbone.dropout=0.0", *TINY, "backbone.layers=2")
UEA = ("task=uea/basic_motions", "scale=smoke", "limits.epochs=3", "recipe.batch_size=9", "backbone.norm=layer", *PLAIN)
LISTOPS = (
    "task=lra/listops", "scale=smoke", "limits.steps=6", "recipe.steps_per_epoch=2", "recipe.batch_size=9",
    "optimizer.lr=0.01", "scheduler.warmup=3", *PLAIN,
)  # fmt: skip
CASES = {
    "softmax": (*UEA, "attention=softmax"),
    "fitted": (*UEA, "attention=ecoformer", "attention.bits=4", "attention.anchors=5", "attention.refit_epochs=2"),
    "redrawn": (*LISTOPS, "attention=performer", "attention.redraw=2"),
    "masked text": (
        "task=mlm/text", "data=standin", "scale=smoke", "attention=softmax", "recipe.batch_size=9",
        "backbone.attention_dropout=0.0", "data.masked=0.05", *PLAIN,
    ),
    "sum of losses": ("task=vqa_v2", "data=standin", "scale=smoke", "attention=dba", "recipe.batch_size=9", "optimizer.eps=0.001", *PLAIN),
}  # fmt: skip


def told(config):
    """Rows of metrics.csv and the last weights of a run."""
    run = Path(config.paths.run)
    return records.read_history(run / "metrics.csv"), weights(run, "last.ckpt")


def assert_same(one, other):
    (history, last), (again, again_last) = told(one), told(other)
    assert history.keys() == again.keys()
    for step, row in history.items():
        assert row == pytest.approx(again[step], rel=1e-4)
    assert last.keys() == again_last.keys()
    for name, tensor in last.items():
        torch.testing.assert_close(again_last[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_parts_train_to_the_numbers_of_whole_batches(data, tmp_path, case):
    whole, parts = (
        composed(data, tmp_path / str(k), *CASES[case], f"trainer.accumulate_grad_batches={k}") for k in (1, 3)
    )
    a, b = trained(whole), trained(parts)
    assert a.fingerprint == b.fingerprint
    assert a.steps == b.steps > 1
    assert_same(whole, parts)


def test_a_run_goes_on_in_parts_where_it_was_interrupted_whole(data, tmp_path):
    words = CASES["redrawn"]
    whole = composed(data, tmp_path / "whole", *words)
    trained(whole)
    for step, k in ((3, 1), (8, 3)):  # whole batches until the fourth step, then parts until the fifth
        with crash(step), pytest.raises(RuntimeError, match="plug"):
            trained(composed(data, tmp_path / "broken", *words, f"trainer.accumulate_grad_batches={k}"))
    broken = composed(data, tmp_path / "broken", *words, "trainer.accumulate_grad_batches=9")
    trained(broken)
    assert_same(whole, broken)
