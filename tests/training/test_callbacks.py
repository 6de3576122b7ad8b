"""Callbacks: the history file, the stop at NaN, the time estimate, seeds and wall time."""

import logging
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from subquad import records
from subquad.training.callbacks import time_estimate
from subquad.training.callbacks.checkpoints import AtomicCheckpoints
from subquad.training.callbacks.fix_weights import FixWeights
from subquad.training.callbacks.guards import SeedEpochs, StopOnNaN, ValidateFirstAndLast
from subquad.training.callbacks.hooks import SkipEmptyHooks
from subquad.training.callbacks.time_estimate import TimeEstimate
from subquad.training.callbacks.wall_clock import WallClock
from subquad.training.metrics_csv import KeepHistory, MetricsCSV
from subquad.utils.errors import UserError
from subquad.utils.fixed_weights import keeps_products

MODULE = SimpleNamespace(device=torch.device("cpu"))
"""What callbacks read of a module."""


def history(path, *rows):
    logger = MetricsCSV(str(path))
    for step, metrics in rows:
        logger.log_metrics(metrics, step)
    logger.save()
    return path.read_text()


def test_validation_comes_after_the_first_and_the_last_epoch_too():
    def looks(interval, epochs, first=0):
        facts, callback = trainer(check_val_every_n_epoch=interval, max_epochs=epochs), ValidateFirstAndLast()
        callback.on_train_start(facts, None)
        for facts.current_epoch in range(first, epochs):
            callback.on_train_epoch_start(facts, None)
            if (facts.current_epoch + 1) % facts.check_val_every_n_epoch == 0:
                yield facts.current_epoch

    assert [*looks(2, 7)] == [0, 1, 3, 5, 6]
    assert [*looks(2, 7, first=4)] == [5, 6]
    assert [*looks(3, 1)] == [0]
    assert [*looks(1, 3)] == [0, 1, 2]


def test_history_has_one_row_a_step_and_every_column(tmp_path):
    text = history(tmp_path / "deep" / "m.csv", (3, {"b": 0.1, "epoch": 0}), (3, {"a": 2.0}), (7, {"b": 1 / 3}))
    assert text.split() == ["step,a,b,epoch", "3,2,0.1,0", "7,,0.3333333333333333,"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["m.csv"]


def test_a_resumed_history_drops_the_steps_it_repeats(tmp_path):
    path = tmp_path / "m.csv"
    whole = history(path, (3, {"a": 1.0}), (7, {"a": 2.5}), (11, {"a": 3.0}), (12, {"test/a": 9.0}))
    state = {"rows": records.read_history(path)}
    path.unlink()
    resumed = MetricsCSV(str(path))
    KeepHistory(resumed).load_state_dict(state)
    assert path.read_text() == whole
    resumed.log_metrics({"a": 2.5}, step=7)
    assert KeepHistory(resumed).state_dict() == {"rows": {3: {"a": 1.0}, 7: {"a": 2.5}}}


def test_an_unchanged_history_is_not_written_again(tmp_path):
    path = tmp_path / "m.csv"
    history(path, (1, {"a": 1.0}))
    before = path.stat().st_mtime_ns
    MetricsCSV(str(path)).save()
    MetricsCSV(str(path)).finalize("success")
    assert path.stat().st_mtime_ns == before


def trainer(**changes):
    facts = {
        "global_step": 7,
        "is_last_batch": False,
        "is_global_zero": True,
        "estimated_stepping_batches": 100_000,
        "current_epoch": 0,
        "global_rank": 0,
        "accumulate_grad_batches": 1,
    }
    return SimpleNamespace(**facts | changes)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_named_with_the_step_and_a_remedy(value):
    guard = StopOnNaN()
    guard.on_train_batch_end(trainer(), None, {"loss": torch.tensor(1.0)}, None, 0)
    with pytest.raises(UserError, match=rf"became {value} at step 7; lower optimizer\.lr"):
        guard.on_train_batch_end(trainer(), None, {"loss": torch.tensor(value)}, None, 1)


def test_the_estimate_names_the_time_and_what_to_type_instead(monkeypatch, caplog):
    times = iter(t for step in range(4) for t in (10.0 * step, 10.0 * step + (5.0 if step < 1 else 0.5)))
    monkeypatch.setattr(time_estimate.time, "perf_counter", lambda: next(times))
    caplog.set_level(logging.WARNING)
    callback = TimeEstimate("python train.py scale=laptop")
    for number in range(4):
        assert not caplog.messages
        callback.on_train_batch_start(trainer(), MODULE, None, number)
        callback.on_train_batch_end(trainer(global_step=4), MODULE, None, None, number)
    callback.on_train_batch_end(trainer(), None, None, None, 7)  # no longer reads the clock
    [message] = caplog.messages
    assert message == (
        "This run will take about 13.9 hours on this machine (0.5 s a step, 99996 steps left). "
        "For a result in minutes: python train.py scale=laptop"
    )


def test_a_short_run_is_not_announced(caplog):
    callback = TimeEstimate(None)
    for number in range(8):
        callback.on_train_batch_start(trainer(), MODULE, None, number)
        callback.on_train_batch_end(trainer(estimated_stepping_batches=10), MODULE, None, None, number)
    assert not caplog.messages


def test_long_runs_are_given_in_days():
    assert "about 2.3 days" in time_estimate._message(2.0, 100_000, None)
    assert "For a result" not in time_estimate._message(2.0, 100_000, None)


def test_every_epoch_and_rank_has_its_own_seeds():
    def draw(seed, epoch, rank):
        module = SimpleNamespace(device=torch.device("cpu"))
        SeedEpochs(seed).on_train_epoch_start(trainer(current_epoch=epoch, global_rank=rank), module)
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    assert draw(0, 1, 0) == draw(0, 1, 0)
    seen = {draw(*key) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))}
    assert len(seen) == 4


def test_hooks_of_batches_that_a_callback_does_not_define_are_left_out():
    guard, seeds = StopOnNaN(), SeedEpochs(0)
    SkipEmptyHooks().setup(trainer(callbacks=[guard, seeds]), None, "fit")
    assert (callable(guard.on_train_batch_end), guard.on_train_batch_start) == (True, None)
    assert (callable(seeds.on_train_epoch_start), seeds.on_train_batch_end) == (True, None)


def test_the_clock_adds_up_over_restarts_from_where_a_run_begins():
    first, second = WallClock(), WallClock()
    assert first.seconds == 0
    first.setup(None, None, "fit")
    first.started -= 100
    first.setup(None, None, "test")
    second.load_state_dict(first.state_dict())
    assert 100 <= second.seconds < 110


def test_a_checkpoint_is_whole_or_the_old_one(tmp_path, monkeypatch):
    path, writer = tmp_path / "deep" / "last.ckpt", AtomicCheckpoints()
    writer.save_checkpoint({"step": 1}, path)

    def full_disk(checkpoint, file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full_disk)
        with pytest.raises(OSError, match="No space"):
            writer.save_checkpoint({"step": 2}, path)
    assert writer.load_checkpoint(path, weights_only=True) == {"step": 1}
    writer.save_checkpoint({"step": 3}, path)
    assert writer.load_checkpoint(path, weights_only=True) == {"step": 3}
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


@torch.no_grad()
def test_weights_are_fixed_during_evaluations_alone():
    keep = FixWeights()
    keep.on_validation_start(None, None)
    assert keeps_products()
    keep.on_exception(None, None, KeyError())
    assert not keeps_products()
    keep.on_test_start(None, None)
    keep.on_validation_start(None, None)  # after an evaluation that did not end
    keep.on_validation_end(None, None)
    assert not keeps_products()
