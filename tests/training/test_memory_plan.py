"""Runs that do not fit their memory: recomputed layers, microbatches, smaller evaluation batches, or one sentence."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
from attention.cells import first_of_each_class
from conftest import made, mechanisms
from hydra.utils import instantiate
from runs import TINY, composed, identical, record_of, trained, weights
from torch import distributed, nn

from subquad import records
from subquad.data import split_data
from subquad.data.batches import EvalBatches
from subquad.measure.step_memory import USABLE
from subquad.training import memory_plan
from subquad.training.evaluation import evaluate
from subquad.training.memory_plan import MemoryPlan, _SharedPlan, _Step
from subquad.training.trainer import build_trainer
from subquad.utils.errors import UserError

THREE = (*TINY, "backbone.layers=3", "scale=smoke", "limits.epochs=1")
NORMALISED = ("task=uea/basic_motions", "attention=softmax", "recipe.batch_size=8", *THREE)
"""With batch normalisation."""
LAYER_NORM = (*NORMALISED, "backbone.norm=layer", "backbone.dropout=0.0")


def step_of(config):
    """The memory of a step of a configuration, which stays as it is."""
    config = deepcopy(config)
    data = instantiate(config.data, _convert_="all")
    data.prepare_data()
    module = instantiate(config.task.module, _convert_="all")(spec=data.spec)
    return _Step(module, data.spec, build_trainer(config, data), data.batch_size, data.batch_size)


FIRST = first_of_each_class({name: made("attention", name) for name in mechanisms()})


@pytest.mark.slow
@pytest.mark.parametrize(
    "attention", [pytest.param(name, marks=[pytest.mark.release] * (name not in FIRST)) for name in mechanisms()]
)
def test_no_step_exceeds_the_bound_that_takes_no_trace(data, outputs, attention):
    for given in (NORMALISED, ("task=lra/listops", "scale=smoke", "trainer=cpu")):
        step = step_of(composed(data, outputs, *given, f"attention={attention}"))
        assert step.peak(False, 1) <= step.bound(step.whole)


@pytest.fixture
def free(monkeypatch):
    """Sets the free memory such that a number of bytes just fits."""
    return lambda needed: monkeypatch.setattr(memory_plan, "free_memory", lambda: int(needed / USABLE) + 1)


@pytest.mark.slow
def test_layers_are_recomputed_and_every_bit_stays(data, outputs, free):
    plain = trained(composed(data, outputs / "plain", *NORMALISED))
    config = composed(data, outputs / "less", *NORMALISED)
    free(step_of(config).peak(True, 1))
    less = trained(config)
    assert less.config["checkpoint_activations"]
    assert not plain.config["checkpoint_activations"]
    assert (less.fingerprint, less.metrics) == (plain.fingerprint, plain.metrics)
    assert less.config["trainer"]["accumulate_grad_batches"] == 1
    assert "recomputes its layers" in less.runtime["memory"]
    assert "memory" not in plain.runtime
    assert identical(weights(record_of(outputs / "less")), weights(record_of(outputs / "plain")))
    assert not list(outputs.rglob("memory.txt"))


@pytest.mark.slow
def test_microbatches_where_recomputing_is_not_enough(data, outputs, free, caplog):
    plain = trained(composed(data, outputs / "plain", *LAYER_NORM))
    config = composed(data, outputs / "less", *LAYER_NORM)
    step = step_of(config)
    free(min(step.peak(True, 1) - 1, step.peak(False, 4)))
    with caplog.at_level("INFO"):
        less = trained(config)
    assert less.config["trainer"]["accumulate_grad_batches"] in (2, 4)
    assert less.fingerprint == plain.fingerprint
    assert less.metrics == pytest.approx(plain.metrics, rel=1e-4)
    [said] = [text for text in caplog.messages if text.startswith("This run needs")]
    assert "microbatches of" in said
    assert evaluate(record_of(outputs / "less"), "test")[1] == less.metrics["test/accuracy"]


@pytest.mark.slow
def test_batches_with_batch_normalisation_are_never_divided(data, outputs, free):
    config = composed(data, outputs, *NORMALISED)
    free((step_of(config).peak(True, 1) - 2) * USABLE)
    with pytest.raises(UserError, match="by estimate, with its layers recomputed and 8 rows at a time, and there are"):
        trained(config)
    assert (Path(config.paths.run) / records.ERROR).exists()


@pytest.mark.slow
def test_a_set_with_fewer_rows_than_a_batch_needs_the_memory_of_its_rows(tmp_path, free):
    """Also one of the user's own, which is read where a whole batch would not fit; twice, as it is then prepared."""
    header = "@univariate false\n@dimensions 1\n@equalLength true\n@seriesLength 9\n@classLabel true a b\n@data\n"
    for part in ("TRAIN", "TEST"):
        lines = "\n".join(",".join(map(str, range(row, row + 9))) + f":{'ab'[row % 2]}" for row in range(6))
        (tmp_path / f"Own_{part}.ts").write_text(
            f"@problemName Own\n@timeStamps false\n@missing false\n{header}{lines}\n"
        )
    own = ("task=uea/custom", "data.dataset=Own", f"data.folder={tmp_path}", "attention=softmax", *THREE)
    config = composed(tmp_path, tmp_path / "first", *own)
    step = step_of(config)
    step.whole = 6
    free(step.peak(False, 1))
    for outputs in ("first", "second"):
        assert "memory" not in trained(composed(tmp_path, tmp_path / outputs, *own)).runtime


@pytest.mark.slow
def test_what_cannot_fit_is_refused_before_its_data_are_read(tmp_path, free):
    free(10**6)
    config = composed(tmp_path, tmp_path, "task=uea/stand_walk_jump", "attention=softmax", "trainer=cpu")
    with pytest.raises(UserError, match=r"12 rows at a time, and there are 1\.18 MB; give it more memory"):
        trained(config)


def test_a_size_that_is_stated_counts_in_place_of_the_free_memory(data, outputs, free):
    free(1)
    record = trained(composed(data, outputs, *NORMALISED, "trainer.accumulate_grad_batches=8GB"))
    assert not record.config["checkpoint_activations"]
    assert record.config["trainer"]["accumulate_grad_batches"] == 1


@pytest.mark.slow
def test_evaluation_batches_shrink(data, outputs, free, monkeypatch):
    sizes = []
    monkeypatch.setattr(split_data, "EvalBatches", lambda *args: sizes.append(args[1]) or EvalBatches(*args))
    given = (*NORMALISED, "+data.eval_batch_size=24")
    plain = trained(composed(data, outputs / "plain", *given))
    monkeypatch.setattr(_Step, "bound", lambda *_: 10**12)
    monkeypatch.setattr(memory_plan, "step_peak", lambda *_: 0)
    monkeypatch.setattr(memory_plan, "evaluation_peak", lambda module, spec, rows, *_: rows * 10**6)
    free(12 * 10**6)
    less = trained(composed(data, outputs / "less", *given))
    assert sizes[:2] == [24, 24]
    assert set(sizes[2:]) == {12}
    assert less.metrics == pytest.approx(plain.metrics, rel=1e-5)
    assert not less.config["checkpoint_activations"]
    assert evaluate(record_of(outputs / "less"), "test")[1] == less.metrics["test/accuracy"]
    assert len(sizes) == 5
    assert set(sizes[2:]) == {12}


def test_processes_take_the_measures_that_any_of_them_needs(monkeypatch):
    plans = [MemoryPlan(True, 1, 8), MemoryPlan(False, 4)]
    monkeypatch.setattr(distributed, "all_gather_object", lambda found, _: found.__setitem__(slice(None), plans))
    trainer, data, settings = SimpleNamespace(world_size=2), SimpleNamespace(), {"trainer": {}}
    _SharedPlan(plans[0], data, settings).setup(trainer, SimpleNamespace(network=nn.Identity()), "fit")
    assert (trainer.accumulate_grad_batches, data.eval_limit) == (4, 8)
    assert settings == {"trainer": {"accumulate_grad_batches": 4}, "checkpoint_activations": True}
