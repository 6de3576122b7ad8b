"""A run that is interrupted anywhere and started again ends exactly as one that was left alone."""

from pathlib import Path

import pytest
from runs import TINY, composed, crash, identical, trained, weights

from subquad import records

EPOCHS = ("task=uea/basic_motions", "attention=dba", "scale=smoke", "limits.epochs=4", "recipe.batch_size=6", *TINY)
STEPS = ("task=lra/listops", "attention=dba", "scale=smoke", "limits.steps=12", "recipe.steps_per_epoch=3", *TINY)


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


@pytest.mark.parametrize("step", [0, 1, 4, 5, 9, 14], ids="step{}".format)
def test_a_run_of_epochs_that_crashed_ends_as_one_that_did_not(data, outputs, undisturbed, step):
    config = composed(data, outputs, *EPOCHS)
    with crash(step), pytest.raises(RuntimeError, match="plug"):
        trained(config)
    trained(composed(data, outputs, *EPOCHS))
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


@pytest.mark.parametrize("step", [2, 3, 7, 11], ids="step{}".format)
def test_a_run_of_steps_that_crashed_ends_as_one_that_did_not(data, outputs, undisturbed, step):
    config = composed(data, outputs, *STEPS)
    with crash(step), pytest.raises(RuntimeError, match="plug"):
        trained(config)
    trained(composed(data, outputs, *STEPS))
    assert_same(Path(config.paths.run), undisturbed[STEPS][1])
