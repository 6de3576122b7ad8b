"""Training with microbatches gives the same numbers as with whole batches."""

import pytest
from processes import CASES, assert_same, run_of
from runs import composed, crash, trained

KINDS = ("fitted", "sum of losses", "redrawn", "masked text")
"""No batch norm, which would normalise each microbatch separately."""


def overrides(case):
    """Overrides with batches of 12; the last batch of 33 rows has nine, whose four microbatches differ in size."""
    return (*CASES[case], "recipe.batch_size=12")


@pytest.mark.parametrize("case", [*KINDS[:2], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[2:])])
@pytest.mark.slow
def test_parts_train_to_the_numbers_of_whole_batches(data, tmp_path, case):
    for k in (1, 4):
        trained(composed(data, tmp_path / str(k), *overrides(case), f"trainer.accumulate_grad_batches={k}"))
    assert_same(run_of(tmp_path / "4"), run_of(tmp_path / "1"))


@pytest.mark.slow
def test_a_run_goes_on_in_parts_where_it_was_interrupted_whole(data, tmp_path):
    trained(composed(data, tmp_path / "whole", *overrides("redrawn")))
    for step, k in ((3, 1), (5, 3)):  # killed after whole batches, and between microbatches
        with crash(step), pytest.raises(RuntimeError, match="plug"):
            trained(composed(data, tmp_path / "broken", *overrides("redrawn"), f"trainer.accumulate_grad_batches={k}"))
    trained(composed(data, tmp_path / "broken", *overrides("redrawn"), "trainer.accumulate_grad_batches=12"))
    assert_same(run_of(tmp_path / "broken"), run_of(tmp_path / "whole"))
