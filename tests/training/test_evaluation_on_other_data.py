"""A run evaluated on other settings of its data: ListOps with longer expressions, as in Table 5 of BLRP."""

import pytest
import torch
from omegaconf import OmegaConf
from runs import TINY, composed, one_thread, record_of, run_script, trained

from subquad import records
from subquad.results.run_store import RunStore
from subquad.training.evaluation import changed_data, evaluate, evaluate_missing
from subquad.utils.errors import UserError

WORDS = ("task=lra/listops", "scale=smoke")
ENCODER = [word for word in TINY if "layers" not in word]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """A run of BLRP, whose weights do not depend on the length."""
    outputs = tmp_path_factory.mktemp("longer") / "outputs"
    trained(composed(data, outputs, *WORDS, "backbone=blrp", *ENCODER))
    return record_of(outputs)


def evaluated(run, split="test", **changes):
    with one_thread():
        return evaluate(run, split, changes)


@pytest.mark.slow
def test_one_copy_is_the_run_itself_and_more_are_longer(finished):
    recorded = records.read(finished).metrics["test/accuracy"]
    assert evaluated(finished, multiply=1) == ("test/accuracy", recorded, recorded)
    for copies in (2, 4):
        name, value, beside = evaluated(finished, multiply=copies, eval_batch_size=4)
        assert (name, beside) == ("test/accuracy", recorded)
        assert 0 <= value <= 1
    assert evaluated(finished, "val", multiply=4)[1] == records.read(finished).metrics["val/accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_model_that_fails_on_the_rows_has_no_score(finished, monkeypatch, split):
    from subquad.backbones.blrp import BLRPEncoder

    monkeypatch.setattr(BLRPEncoder, "forward", lambda _, inputs, valid: torch.full((len(inputs), 10), torch.nan))
    with pytest.raises(UserError, match="so there is no score"):
        evaluated(finished, split)


@pytest.mark.slow
def test_the_network_is_given_the_longer_expressions(finished, monkeypatch):
    from subquad.backbones.blrp import BLRPEncoder

    lengths, intact = [], BLRPEncoder.check_length

    def noted(encoder, inputs):
        lengths.append(inputs.shape[1])
        intact(encoder, inputs)

    monkeypatch.setattr(BLRPEncoder, "check_length", noted)
    evaluated(finished, eval_batch_size=1)
    once = lengths.copy()
    lengths.clear()
    evaluated(finished, multiply=3, eval_batch_size=1)
    assert lengths == [3 * n + 2 for n in once]
    assert len(once) == 32


@pytest.mark.slow
def test_figures_evaluate_the_same_longer_expressions(finished, data):
    overrides = [*WORDS, "backbone=blrp", *ENCODER]
    store = RunStore([f"paths.data={data}", f"paths.outputs={finished.parents[4]}"])
    longer = {"multiply": 3}
    network, batches = store.network(overrides, changes=longer), store.data(overrides, changes=longer).test_dataloader()
    with torch.no_grad():
        right = torch.cat([network(*batch.network_inputs).argmax(-1) == batch.target for batch in batches])
    assert float(right.double().mean()) == pytest.approx(evaluated(finished, multiply=3)[1])


@pytest.mark.slow
def test_the_command_line_takes_settings_of_the_data(finished, data):
    done = run_script(data, finished.parent, "eval.py", f"run={finished}", "data.multiply=2", "data.eval_batch_size=8")
    assert done.returncode == 0, done.stderr
    _, expected, recorded = evaluated(finished, multiply=2)
    assert done.stdout.strip() == f"test/accuracy {expected:.6f} (record: {recorded:.6f})"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"copies": 2}, r"have no data\.copies; they have .*multiply"),
        ({"multiply": 0}, r"data\.multiply is 0; choose a whole number from 1"),
        ({"multiply": 1.5}, r"data\.multiply is 1\.5; choose a whole number"),
        ({"data_seed": 1}, r"With data\.data_seed=1 these are other data than those of this run"),
    ],
)
def test_what_makes_no_sense_is_named(finished, changes, complaint):
    from hydra.errors import InstantiationException

    with pytest.raises((UserError, InstantiationException), match=complaint):
        evaluated(finished, **changes)


@pytest.mark.parametrize(
    "change", [{"split_seed": 7}, {"protocol": "clean"}, {"val_fraction": 0.4}, {"max_cases": 20}, {"max_cases": None}]
)
def test_training_rows_are_not_tested_by_another_division(change):
    settings = composed("data", "outputs", "task=uea/basic_motions", "protocol=paper", "data.max_cases=30").data
    settings = OmegaConf.to_container(settings, resolve=True)
    assert changed_data(settings, {"split_seed": settings["split_seed"], "max_cases": 30, "pad": "batch"})
    with pytest.raises(UserError, match=f"data.{next(iter(change))}=.* divides the rows otherwise than in training"):
        changed_data(settings, change)


def test_weights_that_depend_on_the_length_are_named(data, outputs):
    trained(composed(data, outputs, *WORDS, "attention=softmax", "backbone.position=learned", *TINY))
    run = record_of(outputs)
    assert evaluated(run, multiply=1)[1] == records.read(run).metrics["test/accuracy"]
    with pytest.raises(UserError, match=r"do not fit these data \(size mismatch for .*position.*longer sequences"):
        evaluated(run, multiply=2)


def test_an_evaluation_holds_every_metric_of_the_task(data, outputs):
    """Tables of recall show its accuracy; its monitored metric is the perplexity."""
    with pytest.raises(UserError, match=r"have no data\.tset_pairs"):  # before it trains
        trained(composed(data, outputs, "task=arena/recall", "scale=smoke", "evaluate=[{tset_pairs:8}]"))
    config = composed(data, outputs, "task=arena/recall", "scale=smoke", "evaluate=[{test_pairs:8}]")
    record = trained(config)
    evaluate_missing(config)
    found = records.read_evaluation(record_of(outputs), {"test_pairs": 8})
    assert found.keys() == {name for name in record.metrics if name.startswith("test/")}
