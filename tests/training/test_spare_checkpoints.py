"""The last checkpoint is skipped after short epochs, except where skipping it would lose information."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from subquad.training.callbacks.checkpoints import SpareCheckpoints


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("subquad.training.callbacks.checkpoints.time.monotonic", lambda: now[0])
    return now


def writes(spare: SpareCheckpoints, score: float | None, step: int, stop: bool = False) -> bool:
    """Whether a checkpoint is written after an epoch with this best score."""
    trainer: Any = SimpleNamespace(
        checkpoint_callback=SimpleNamespace(best_model_score=None if score is None else torch.tensor(score)),
        should_stop=stop, global_step=step, estimated_stepping_batches=50,
        strategy=SimpleNamespace(broadcast=lambda value: value),
    )  # fmt: skip
    spare.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
    return spare.saver._last_global_step_saved != step


def test_first_last_better_and_late_epochs_are_written(clock: list[float]) -> None:
    spare = SpareCheckpoints(SimpleNamespace(_last_global_step_saved=0), seconds=10)  # type: ignore[arg-type]
    assert writes(spare, 0.5, 5)
    assert not writes(spare, 0.5, 10)
    assert writes(spare, 0.6, 15)
    assert not writes(spare, 0.6, 20)
    clock[0] += 10
    assert writes(spare, 0.6, 25)
    assert not writes(spare, 0.6, 30)
    assert writes(spare, 0.6, 35, stop=True)
    assert writes(spare, 0.6, 50)
