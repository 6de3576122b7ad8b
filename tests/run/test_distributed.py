"""Two processes train to the numbers of one, and go on with one another's runs."""

from pathlib import Path

import pytest
from processes import train_together
from runs import TINY, composed, crash, trained, weights
from torch.testing import assert_close

from subquad import records

PLAIN = (*TINY, "backbone.dropout=0.0", "backbone.layers=2", "~callbacks.cores")
UEA = ("task=uea/basic_motions", "scale=smoke", "limits.cases=33", "limits.epochs=4", "recipe.batch_size=8")
STEPS = ("scale=smoke", "recipe.batch_size=10", "limits.steps=6", "recipe.steps_per_epoch=2")
CASES = {
    "fitted": (
        *UEA, "attention=ecoformer", "attention.bits=4", "attention.anchors=5", "attention.refit_epochs=2",
        "backbone.norm=layer", *PLAIN,
    ),
    "batch norm": (*UEA, "attention=softmax", *PLAIN),
    "redrawn": (
        "task=lra/listops", *STEPS, "optimizer.lr=0.01", "scheduler.warmup=3", "attention=performer",
        "attention.redraw=2", *PLAIN,
    ),
    "masked text": (
        "task=mlm/text", "data=standin", *STEPS, "attention=softmax", "data.masked=0.05",
        "backbone.attention_dropout=0.0", *PLAIN,
    ),
    "sum of losses": (
        "task=vqa_v2", "data=standin", "scale=smoke", "attention=dba", "recipe.batch_size=10", "optimizer.eps=0.001",
        *PLAIN,
    ),
}  # fmt: skip
DDP, SHARDED = ("trainer=ddp_cpu",), ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")
PARTS = ("trainer.accumulate_grad_batches=2", "checkpoint_activations=true")


def words(data: Path, outputs: Path, *more: str) -> tuple[str, ...]:
    return (*more, f"paths.data={data}", f"paths.outputs={outputs}")


def placed(case: str, *trainer: str) -> tuple[str, ...]:
    """The words of a case with another trainer than one process on a CPU."""
    return (*(word for word in CASES[case] if not trainer or word != "trainer=cpu"), *trainer)


def run_of(outputs: Path) -> Path:
    [found] = outputs.rglob("result.json")
    return found.parent


def assert_same(run: Path, expected: Path) -> None:
    ours, theirs = (records.read(folder) for folder in (run, expected))
    assert (ours.fingerprint, ours.steps, ours.parameters) == (theirs.fingerprint, theirs.steps, theirs.parameters)
    assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)
    history, whole = (records.read_history(folder / "metrics.csv") for folder in (run, expected))
    assert history.keys() == whole.keys()
    for step, row in whole.items():
        assert history[step] == pytest.approx(row, rel=1e-4)
    for name in ("best.ckpt", "last.ckpt"):
        found, wanted = weights(run, name), weights(expected, name)
        assert found.keys() == wanted.keys()
        for key, tensor in wanted.items():
            assert_close(found[key], tensor, rtol=1e-3, atol=1e-5, msg=f"{name}: {key}")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data):
    """The runs of one process."""
    place = tmp_path_factory.mktemp("alone")
    for case in CASES:
        trained(composed(data, place / case, *CASES[case]))
    return {case: run_of(place / case) for case in CASES}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, data):
    """Runs that one process left in their third epoch."""
    place = tmp_path_factory.mktemp("interrupted")
    for name in ("fitted", "sharded"):
        with crash(12), pytest.raises(RuntimeError, match="plug"):
            trained(composed(data, place / name, *CASES["fitted"]))
    return place


@pytest.fixture(scope="module")
def together(tmp_path_factory, data, alone, interrupted):
    """The folders of the same runs by two processes, whole and in parts; and of those that they go on with, or leave.

    The runs of one process came first: they have prepared the data.
    """
    place = tmp_path_factory.mktemp("together")
    runs = [(words(data, place / case, *placed(case, *DDP)), None) for case in CASES]
    runs += [
        (words(data, place / "parts", *placed("masked text", *DDP, *PARTS)), None),
        (words(data, place / "sharded", *placed("fitted", *SHARDED)), None),
        (words(data, interrupted / "fitted", *placed("fitted", *DDP)), None),
        (words(data, interrupted / "sharded", *placed("fitted", *SHARDED)), None),
        (words(data, place / "left", *placed("fitted", *DDP)), 12),
        (words(data, place / "sharded left", *placed("fitted", *SHARDED)), 12),
    ]
    train_together(place / "said", runs)
    return place


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_to_the_numbers_of_one(together, alone, case):
    assert_same(run_of(together / case), alone[case])


def test_two_processes_train_in_recomputed_parts_to_the_numbers_of_one(together, alone):
    assert_same(run_of(together / "parts"), alone["masked text"])


def test_processes_that_divide_the_parameters_train_to_the_numbers_of_one(together, alone):
    assert_same(run_of(together / "sharded"), alone["fitted"])


@pytest.mark.parametrize("kind", ["fitted", "sharded"])
def test_two_processes_go_on_with_a_run_of_one(together, interrupted, alone, kind):
    assert_same(run_of(interrupted / kind), alone["fitted"])


@pytest.mark.parametrize("kind", ["left", "sharded left"])
def test_one_process_goes_on_with_a_run_of_two(together, alone, data, kind):
    assert not list((together / kind).rglob("result.json"))
    trained(composed(data, together / kind, *CASES["fitted"]))
    assert_same(run_of(together / kind), alone["fitted"])


def test_only_the_first_process_speaks_and_nobody_warns(together):
    first, second = ((together / "said" / f"{rank}.txt").read_text() for rank in range(2))
    assert second == ""
    assert "Warning" not in first
