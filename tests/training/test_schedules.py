"""Learning-rate schedules, compared with values computed by hand."""

import math

import pytest
import torch

from subquad.training import schedules
from subquad.utils.errors import UserError


def rates(schedule, steps, lr=1.0, **settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = schedule(optimizer, **settings)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_constant():
    assert rates(schedules.constant, 4, lr=0.3, total_steps=4) == [0.3] * 4


def test_inverse_sqrt_rises_to_the_rate_and_falls_with_the_root():
    found = rates(schedules.inverse_sqrt, 17, lr=0.5, total_steps=17, warmup=4, start_lr=0.1)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found[16] == pytest.approx(0.5 * math.sqrt(4 / 16))
    assert found[9] == pytest.approx(0.5 * 2 / 3)


def test_inverse_sqrt_without_warmup_starts_at_the_rate():
    found = rates(schedules.inverse_sqrt, 5, lr=0.5, total_steps=5, warmup=0)
    assert found == pytest.approx([0.5, 0.5, 0.5 / math.sqrt(2), 0.5 / math.sqrt(3), 0.25])


def test_warmup_cosine_ends_at_zero():
    found = rates(schedules.warmup_cosine, 11, lr=2.0, total_steps=10, warmup=2)
    assert found[:3] == pytest.approx([0.0, 1.0, 2.0])
    assert found[6] == pytest.approx(1.0)
    assert found[4] == pytest.approx(1 + math.cos(math.pi / 4))
    assert found[10] == pytest.approx(0.0, abs=1e-12)


def test_one_cycle_rises_from_a_25th_and_falls_to_nearly_nothing():
    found = rates(schedules.one_cycle, 10, lr=1.0, total_steps=10, warmup=4)
    # torch's peak is at pct_start * total_steps - 1
    assert found[0] == pytest.approx(1 / 25)
    assert found[3] == pytest.approx(1.0)
    assert found[1] == pytest.approx(1 / 25 + (24 / 25) / 3)
    assert found[9] == pytest.approx(1 / 250_000)
    assert found[6] == pytest.approx(0.5, abs=1e-4)


def test_one_cycle_shorter_than_its_warmup_still_runs():
    assert len(rates(schedules.one_cycle, 3, total_steps=3, warmup=1000)) == 3


@pytest.mark.parametrize(("steps", "warmup"), [(100, 1), (2, 1), (2, 1000)])
def test_one_cycle_with_one_step_to_rise_falls_from_the_start(steps, warmup):
    found = rates(schedules.one_cycle, steps, lr=1.0, total_steps=steps, warmup=warmup)
    assert sorted(found, reverse=True) == found != [found[0]] * steps


def test_warmup_linear_ends_at_zero():
    found = rates(schedules.warmup_linear, 13, lr=2.0, total_steps=10, warmup=2)
    assert found[:4] == pytest.approx([0.0, 1.0, 2.0, 1.75])
    assert found[10:] == [0.0] * 3


def test_warmup_linear_with_a_factor_and_without_a_warmup():
    found = rates(schedules.warmup_linear, 5, total_steps=4, warmup=0, gamma=0.8, every=2)
    assert found == pytest.approx([1.0, 0.75, 0.8 * 0.5, 0.8 * 0.25, 0.0])


@pytest.mark.parametrize("name", ["inverse_sqrt", "warmup_cosine", "warmup_linear"])
def test_a_warmup_that_never_ends_is_said(name, caplog):
    rates(getattr(schedules, name), 2, total_steps=20, warmup=20)
    assert caplog.text == ""
    rates(getattr(schedules, name), 2, total_steps=20, warmup=1000)
    assert "scheduler.warmup=1000 steps is longer than the run of 20, and ends at 0.02 of the rate" in caplog.text


def test_staircase_climbs_by_epochs_and_drops_twice():
    found = rates(schedules.staircase, 28, lr=2.0, total_steps=26, epochs=13, warmup=3, drops=[10, 12], gamma=0.2)
    assert found[:8] == pytest.approx([0.5, 0.5, 1.0, 1.0, 1.5, 1.5, 2.0, 2.0])
    assert found[8:20] == [2.0] * 12
    assert found[20:24] == pytest.approx([0.4] * 4)
    assert found[24:] == pytest.approx([0.08] * 4)


@pytest.mark.parametrize(
    ("schedule", "settings"),
    [
        (schedules.staircase, {"warmup": 3, "drops": [], "gamma": 0.2}),
        (schedules.epoch_cosine, {"warmup_epochs": 5, "start_lr": 1e-6, "final_lr": 1e-5}),
    ],
    ids=["staircase", "epoch_cosine"],
)
def test_schedules_by_epochs_need_their_number(schedule, settings):
    with pytest.raises(UserError, match=r"number of epochs; scheduler\.epochs is -1"):
        rates(schedule, 1, total_steps=26, epochs=-1, **settings)
