"""Hostile overrides compose, build a run, or are refused in a sentence. `make chaos` draws more."""

import pytest
from config.hostile import BASES, build_run, overrides, verdict
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf.errors import InterpolationResolutionError

from subquad.config.compose import compose_run
from subquad.utils.errors import UserError


@settings(
    max_examples=40, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.data())
@pytest.mark.slow
def test_any_override_composes_or_is_refused_in_a_sentence(tmp_path_factory, data):
    base = data.draw(st.sampled_from(BASES))
    root = tmp_path_factory.getbasetemp()
    assert verdict(base, data.draw(overrides(base)), root, build=False) in ("composed", "refused")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("backbone.head_hidden=0", "backbone.head_hidden is 0; choose a whole number from 1 or null."),
        ("recipe.steps_per_epoch=0", "data.steps_per_epoch is 0; choose a whole number from 1 or null."),
        ("optimizer.weight_decay=TRUE", "optimizer.weight_decay is true; choose a number from 0."),
        ("checkpoint_activations=[-1,0]", "checkpoint_activations is [-1, 0]; choose true or false."),
        ("limits.cases='1'", "limits.cases is '1'; choose a whole number from 1 or null."),
        ("limits.steps=-inf", "limits.steps is -inf; choose a whole number from 1 or -1."),
        ("callbacks.last.save_top_k=false", "callbacks.last.save_top_k is false; choose a whole number."),
        ("trainer.accumulate_grad_batches=0", "trainer.accumulate_grad_batches is 0; choose a whole number from 1 or"),
        ("trainer.max_epochs=soon", "trainer.max_epochs is soon; choose a whole number from 1, -1 or null."),
        ("optimizer._target_=7", "optimizer has no class; choose one by its group"),
        ("attention._partial_=1", "attention._partial_ is 1; choose true or false."),
        ("task.module.backbone=5", "task.module.backbone is 5; choose"),
        ("callbacks.best=5", "callbacks.best has no class"),
        ("trainer.logger='1'", "trainer.logger has '1', which is none; choose logger=csv"),
        ("trainer.logger=false", "A run needs the history of its metrics; set neither trainer.logger"),
        ("~attention", "needs attention=; for none, set backbone.attention=null."),
        ("trainer=[1]", "write them as key=value."),
        ("backbone=null", "backbone=null chooses nothing; leave it out"),
    ],
)
def test_nonsense_is_named(tmp_path, override, said):
    fixed = [f"paths.{name}={tmp_path / name}" for name in ("root", "data", "outputs")]
    with pytest.raises((UserError, SystemExit, InterpolationResolutionError)) as refused:
        build_run(compose_run(["task=lra/listops", "scale=smoke", "recipe=luna", override, *fixed]))
    assert said in str(refused.value)
