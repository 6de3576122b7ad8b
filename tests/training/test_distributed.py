"""Two processes reach the same numbers as one; slower tests are in tests/training/test_distributed_longer.py."""

import pytest
from processes import CASES, DDP, assert_same, run_of, told, train_together
from runs import composed, trained

from subquad import records
from subquad.training.distributed import flags

PARTS = ("trainer.accumulate_grad_batches=2", "checkpoint_activations=true")
SMALL = "trainer.accumulate_grad_batches=0.8MB"
"""Memory in which both processes recompute their layers."""
TRAINERS = {"fitted": DDP, "batch norm": (*DDP, SMALL), "masked text": (*DDP, *PARTS)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data):
    """The runs of one process."""
    place = tmp_path_factory.mktemp("alone")
    for case in TRAINERS:
        trained(composed(data, place / case, *CASES[case]))
    return place


@pytest.fixture(scope="module")
def together(tmp_path_factory, data, alone):
    """The runs of two processes and their output. `alone` has prepared the data."""
    place = tmp_path_factory.mktemp("together")
    runs = [(told(data, place / case, case, *trainer), None) for case, trainer in TRAINERS.items()]
    return place, train_together(place / "said", runs)


@pytest.mark.slow
@pytest.mark.parametrize("case", TRAINERS)
def test_two_processes_train_to_the_numbers_of_one(together, alone, case):
    assert_same(run_of(together[0] / case), run_of(alone / case))


@pytest.mark.slow
def test_processes_that_lack_memory_recompute_their_layers(together):
    assert records.read(run_of(together[0] / "batch norm")).config["checkpoint_activations"]


@pytest.mark.slow
def test_only_the_first_process_speaks_and_nobody_warns(together):
    first, second = together[1]
    assert second == ""
    assert "Warning" not in first


def test_other_processes_and_jobs_get_the_flags_in_either_form(monkeypatch):
    given = ["train.py", "-m", "--config-dir=x", "--config-name", "mine", "seed=0", "~attention", "--cfg=job"]
    monkeypatch.setattr("sys.argv", given)
    assert flags() == ["--config-dir=x", "--config-name", "mine", "--cfg=job"]
