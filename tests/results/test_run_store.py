"""Figures get what finished runs left: metrics, logs, weights; and the one command trains what is missing."""

import json

import pytest
import torch
from runs import TINY, answer, composed, run_script, trained, weights

from subquad.measure.analysis.head_weights import head_distances
from subquad.results.measures import head_distance
from subquad.results.run_store import RunStore
from subquad.utils.errors import UserError

WORDS = ["task=uea/basic_motions", "attention=softmax", "data=synthetic", "scale=smoke", *TINY]


@pytest.mark.slow
def test_a_finished_run_is_found_with_its_weights(data, outputs, monkeypatch):
    monkeypatch.setenv("SUBQUAD_DATA", str(data))
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(outputs))
    store = RunStore(["data=synthetic"])
    overrides = [word for word in WORDS if word != "data=synthetic"]
    assert store.metrics(overrides) is store.history(overrides) is store.network(overrides) is None
    with pytest.raises(UserError, match=r"train it first: python train\.py"):
        head_distance(WORDS, "mean", 0)

    record = trained(composed(data, outputs, *WORDS, "seed=0"))
    assert store.metrics(overrides) == record.metrics
    assert store.scores(overrides) == record.baselines
    [logged] = [row for row in store.history(overrides).values() if "val/loss" in row]
    assert logged["val/loss"] == pytest.approx(record.metrics["val/loss"], rel=1e-5)
    network, kept = store.network(overrides), weights(store.spec(overrides).folder)
    assert all(torch.equal(kept[f"network.{name}"], value) for name, value in network.state_dict().items())
    fresh = store.network(overrides, trained=False)
    assert not torch.equal(fresh.head.weight, network.head.weight)
    assert not network.training
    assert "seed=3" in store.command(overrides, 3)

    rows = store.data(overrides).batched("test")
    inputs = [rows.__getitems__([place]).network_inputs for place in range(3)]
    mean, spread = head_distances(network, inputs)
    assert head_distance(WORDS, "mean", 0, rows=3) == pytest.approx(mean)
    assert head_distance(WORDS, "std", 0, rows=3) == pytest.approx(spread)
    assert mean > 0


@pytest.mark.slow
def test_one_command_trains_and_draws(data, outputs):
    overrides = ["figure=dba/3", "scale=smoke", "data=synthetic", "trainer=cpu"]
    first = answer("scripts/figure.py", *overrides, f"paths.data={data}", f"paths.outputs={outputs}")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("not run: python train.py") == 2
    assert "run=true" in first.stdout
    second = run_script(data, outputs, "scripts/figure.py", *overrides, "run=true")
    assert second.returncode == 0, second.stderr
    assert "not run" not in second.stdout
    found = json.loads((outputs / "figures" / "dba" / "3" / "3.json").read_text())
    assert found["overrides"] == overrides[1:]
    assert found["numbers"]["sides"]["Linformer"]["change_between_samples"] == 0
    assert found["numbers"]["samples"][0]["row"] == 0
    assert (outputs / "figures" / "dba" / "3" / "3.png").stat().st_size > 10_000


def test_settings_of_its_runs_alone_do_not_hinder_a_figure(outputs):
    folder = f"data.folder={outputs.parent}"
    done = answer("scripts/figure.py", "figure=linformer/1", folder, "sweep.workers=1", f"paths.outputs={outputs}")
    assert done.returncode == 0, done.stderr
    [missing] = [line for line in done.stdout.splitlines() if line.startswith("not run: ")]
    assert folder in missing
    assert "sweep.workers" not in missing
    assert "Nothing is drawn: no run of this figure has finished here." in done.stdout
    assert not (outputs / "figures").exists()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("scripts/figure.py",), "Which figure?"),
        (("scripts/figure.py", "figure=dba/9"), 'There is no figure "dba/9"'),
        (("scripts/figure.py", "figure=dba/4", "sedes=[1]"), "sedes"),
        (("scripts/show_attention.py", "length=8", "dim=4"), "set dim=8 or more"),
        (("scripts/check_theorems.py", "topic=none"), 'There is no topic "none"'),
    ],
)
def test_mistakes_are_answered_by_a_sentence(overrides, said):
    done = answer(*overrides)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
