"""A run that is interrupted anywhere and started again ends exactly as one that was left alone."""

from pathlib import Path
from unittest import mock

import pytest
import torch
from runs import TINY, composed, crash, identical, trained, weights

from subquad import records

EPOCHS = ("task=uea/basic_motions", "attention=dba", "scale=smoke", "limits.epochs=5", "recipe.batch_size=6", *TINY)
STEPS = (
    "task=lra/listops", "attention=dba", "scale=smoke", "limits.steps=12", "recipe.steps_per_epoch=3",
    "optimizer.lr=0.01", "scheduler.warmup=4", *TINY,
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data):
    outputs = tmp_path_factory.mktemp("undisturbed")
    found = {}
    for words in (EPOCHS, STEPS):
        config = composed(data, outputs, *words)
        found[words] = trained(config), Path(config.paths.run)
    return found


def assert_same(run: Path, expected: Path) -> None:
    assert (run / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()
    for name in ("best.ckpt", "last.ckpt"):
        assert identical(weights(run, name), weights(expected, name))
    assert records.read(run).metrics == records.read(expected).metrics


def test_series_are_validated_after_the_first_every_second_and_the_last_epoch(undisturbed):
    history = records.read_history(undisturbed[EPOCHS][1] / "metrics.csv")
    assert [step // 4 for step, row in history.items() if "val/accuracy" in row] == [0, 1, 3, 4]


@pytest.mark.parametrize("step", [1, 9, 13], ids="step{}".format)
def test_a_run_of_epochs_that_crashed_ends_as_one_that_did_not(data, outputs, undisturbed, step):
    config = composed(data, outputs, *EPOCHS)
    with crash(step), pytest.raises(RuntimeError, match="plug"):
        trained(config)
    trained(composed(data, outputs, *EPOCHS))
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


@pytest.mark.parametrize("step", [3, 11], ids="step{}".format)
def test_a_run_of_steps_that_crashed_ends_as_one_that_did_not(data, outputs, undisturbed, step):
    config = composed(data, outputs, *STEPS)
    with crash(step), pytest.raises(RuntimeError, match="plug"):
        trained(config)
    trained(composed(data, outputs, *STEPS))
    assert_same(Path(config.paths.run), undisturbed[STEPS][1])


def test_ctrl_c_while_a_checkpoint_is_written_is_no_failure(data, outputs, undisturbed):
    """torch then ends its file with an error of its own."""
    config = composed(data, outputs, *EPOCHS)
    intact, written = torch.save, []

    def stopped(checkpoint, file):
        written.append(file)
        if len(written) < 4:
            return intact(checkpoint, file)
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 309440 vs 309328")

    with mock.patch("torch.save", stopped), pytest.raises(SystemExit) as ended:
        trained(config)
    assert ended.value.code == 130
    assert not (Path(config.paths.run) / records.ERROR).exists()
    trained(composed(data, outputs, *EPOCHS))
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


def test_a_run_that_crashed_again_and_again_ends_as_one_that_did_not(data, outputs, undisturbed):
    for _ in range(2):  # each try gets one epoch further
        with crash(5), pytest.raises(RuntimeError, match="plug"):
            trained(composed(data, outputs, *EPOCHS))
    config = composed(data, outputs, *EPOCHS)
    trained(config)
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


def test_a_run_killed_after_training_and_before_its_record_keeps_its_numbers(data, outputs, undisturbed):
    config = composed(data, outputs, *EPOCHS)
    with mock.patch.object(records, "write", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        trained(config)
    assert records.read(Path(config.paths.run)) is None
    with crash(0):  # no step is left to train
        trained(composed(data, outputs, *EPOCHS))
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


def test_a_run_read_by_worker_processes_is_the_same_run(data, outputs, undisturbed):
    words = (*EPOCHS, "data.num_workers=1")
    with crash(5), pytest.raises(RuntimeError, match="plug"):
        trained(composed(data, outputs, *words))
    config = composed(data, outputs, *words)
    trained(config)
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])
