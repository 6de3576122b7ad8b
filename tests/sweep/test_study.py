"""A search of settings: what is drawn, what an interruption leaves, what ends a trial early, and a search as typed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from omegaconf import OmegaConf
from optuna.trial import TrialState
from runs import composed, run_script

from subquad import records
from subquad.config.choices import CONFIGS
from subquad.data.text.own_texts import OwnTexts
from subquad.report.html.study_page import write_study_page
from subquad.sweep.study import check_counts, opened, split
from subquad.training.callbacks.prune import PRUNED, TRIAL, Prune, storage_of
from subquad.utils.errors import UserError

LINE = ["task=digits", "scale=smoke"]
MEDIAN = {"_target_": "optuna.pruners.MedianPruner", "n_startup_trials": 1}


@pytest.fixture
def config(data, outputs):
    config = composed(data, outputs, *LINE)
    config.hydra = {"sweeper": {"pruner": MEDIAN}}
    return config


def searched(config, words, sampler=None, pruner=None):
    sampler = sampler or {"_target_": "optuna.samplers.RandomSampler", "seed": 0}
    fixed, space = split([*LINE, *words], {})
    return opened(
        config,
        fixed,
        space,
        None,
        None,
        OmegaConf.create(sampler),
        pruner and OmegaConf.create(pruner),
        write_study_page,
    )


def test_ranges_and_lists_are_drawn_from_as_written():
    words = [
        *LINE,
        "optimizer.lr=tag(log,interval(1e-4,1e-2))",
        "attention=dba,softmax",
        "backbone.layers=range(1,6,2)",
    ]
    fixed, space = split(words, {"seed": "int(interval(1,4))", "attention": "choice(luna,linear)"})
    assert fixed == LINE
    assert space == {
        "optimizer.lr": optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True),
        "attention": optuna.distributions.CategoricalDistribution(["dba", "softmax"]),
        "backbone.layers": optuna.distributions.CategoricalDistribution(["1", "3", "5"]),
        "seed": optuna.distributions.IntDistribution(1, 4),
    }
    with pytest.raises(UserError, match=r"lr=interval\(1,0.1\) is no range .*; write the smaller number first"):
        split(["optimizer.lr=interval(1,0.1)"], {})
    with pytest.raises(
        UserError, match=r"lr=tag\(log,interval\(0,1\)\) is no range .*; a logarithm needs numbers above 0"
    ):
        split(["optimizer.lr=tag(log,interval(0,1))"], {})
    with pytest.raises(UserError, match="Nothing is searched; give a range"):
        split(LINE, {})
    with pytest.raises(UserError, match='There is no setting "optimzer"; did you mean optimizer'):
        split(LINE, {"optimzer.lr": "interval(0.1,1)"})


@pytest.mark.parametrize("wrong", [0, -1, "abc", 2.5, True])
def test_a_search_refuses_numbers_of_trials_that_it_cannot_run(wrong):
    check_counts(1, None)
    with pytest.raises(UserError, match=f"hydra.sweeper.n_trials={wrong} is no whole number above 0; try"):
        check_counts(wrong, None)
    with pytest.raises(UserError, match=f"hydra.sweeper.n_jobs={wrong} is no whole number"):
        check_counts(1, wrong)


def test_an_interrupted_search_tries_its_running_trials_again_and_draws_others_after(config):
    words = ["optimizer.lr=interval(0.1,0.9)"]
    with searched(config, words) as search:
        ended = search.ask(2)
        search.tell([0.5, "no such luck\nTraceback"])
        running = search.ask(2)
        with pytest.raises(UserError, match="Another process is searching"), searched(config, words):
            pass
    with searched(config, words) as search:
        assert search.ended == 2  # one finished, one failed
        assert search.ask(2) == running
        [fresh] = search.ask(1)
        assert fresh not in [*ended, *running]
        search.tell([0.25])
        page = (search.folder / "index.html").read_text()
        assert "5 trials (and 2 interrupted, which were tried again)" in page
    with searched(config, ["optimizer.lr=interval(0.1,0.8)"]) as other:
        assert other.asked == 0


def test_trials_with_the_same_settings_are_one_run(config):
    with searched(config, ["attention=dba,softmax"]) as search:
        jobs = search.ask(6)
        assert sorted(words[-1] for words in jobs) == ["attention=dba", "attention=softmax"]
        search.tell([0.5, "out of luck"])
        assert search.ended == 6
        found = {(t.params["attention"], t.value) for t in search.study.get_trials()}
        assert len(found) == 2


def test_the_best_trial_is_the_highest_of_an_accuracy_and_has_a_page(config, capsys):
    with searched(config, ["attention=dba,softmax,luna", "optimizer.lr=interval(1e-4,1e-1)"]) as search:
        jobs = search.ask(3)
        search.tell([0.25, 0.75, "out of <luck>"])
        assert search.show() == 0.75
        page = (search.folder / "index.html").read_text()
        best = OmegaConf.load(search.folder / "best.yaml")
    assert "2 of 3 trials finished, 1 failed; the best val/accuracy is 0.75 (trial 1)" in (
        said := capsys.readouterr().out
    )
    assert f"python train.py {' '.join(jobs[1])}\n" in said
    assert best.best_value == 0.75
    assert f"attention={best.best_params.attention}" in jobs[1]
    assert "out of &lt;luck&gt;" in page
    assert page.count("<svg") == 1
    assert re.findall(r'<tr( class="reference")?><th scope="row">(\d)', page) == [
        (' class="reference"', "1"), ("", "0"), ("", "2"),
    ]  # fmt: skip


def test_a_sampler_or_a_database_that_does_not_exist_is_one_sentence(config):
    with pytest.raises(UserError, match=r"hydra.sweeper.sampler cannot be built \(Error loading 'optuna.Nope'"):
        searched(config, ["seed=range(3)"], {"_target_": "optuna.Nope"}).__enter__()
    fixed, space = split([*LINE, "seed=range(3)"], {})
    with pytest.raises(UserError, match=r"The database sqlite:////nowhere/x.db cannot be used"):
        opened(config, fixed, space, None, "sqlite:////nowhere/x.db", None, None, write_study_page).__enter__()


def test_another_sampler_or_pruner_is_not_built_with_what_the_shipped_one_takes(config):
    shipped = OmegaConf.load(CONFIGS / "hydra" / "sweeper" / "optuna.yaml")
    sampler = {**shipped.sampler, "_target_": "optuna.samplers.RandomSampler"}
    pruner = {**shipped.pruner, "_target_": "optuna.pruners.PercentilePruner", "percentile": 30.0, "n_warmup_steps": 7}
    with searched(config, ["optimizer.lr=interval(0.1,0.9)"], sampler, pruner) as search:
        assert type(search.study.sampler) is optuna.samplers.RandomSampler
        assert (search.study.pruner._percentile, search.study.pruner._n_warmup_steps) == (30, 7)


def test_other_code_of_an_own_class_is_another_search(config, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("subquad.config.own_code._FIRST", {})
    for times, code in enumerate(("a = 1", "a = 2")):
        (tmp_path / "mine.py").write_text(code)
        with searched(config, ["attention=dba,mine:Mine", "optimizer.lr=interval(0.1,0.9)"]) as search:
            assert search.asked == 0, times
            search.tell([0.5 for _ in search.ask(1)])
        monkeypatch.setattr("subquad.config.own_code._FIRST", {})  # another process


def test_other_files_of_the_user_are_another_search(data, outputs, tmp_path):
    words = ["task=text/custom", f"data.train={tmp_path}/train.csv", "data.tokenizer=bytes", "scale=smoke"]
    for times in range(2):
        OwnTexts.write_synthetic(tmp_path)
        with (tmp_path / "train.csv").open("a") as file:
            file.write("one more,a\n" * times)
        config = composed(data, outputs, *words)
        config.hydra = {"sweeper": {"pruner": MEDIAN}}
        fixed, space = split([*words, "optimizer.lr=interval(0.1,0.9)"], {})
        with opened(config, fixed, space, None, None, None, None, write_study_page) as search:
            assert search.asked == 0, times
            search.tell([0.5 for _ in search.ask(1)])


def test_a_search_of_another_name_keeps_to_its_settings(config):
    fixed, space = split([*LINE, "seed=interval(0,9)"], {})
    with opened(config, fixed, space, "mine", None, None, None, write_study_page):
        pass
    with pytest.raises(UserError, match="mine is a search of other settings; choose another"):
        opened(config, [*fixed, "backbone.dim=32"], space, "mine", None, None, None, write_study_page).__enter__()


def test_a_trial_that_validates_worse_than_the_median_ends_and_is_no_failure(config):
    with searched(config, ["optimizer.lr=interval(0.1,0.9)"], pruner=MEDIAN) as search:
        search.ask(1)
        search.running[0][0].report(0.6, 10)
        search.tell([0.6])
        [[*_, word]] = search.ask(1)
        assert word.startswith(f"+hydra.job.env_set.{TRIAL}=")
        callback = Prune(**json.loads(word.partition("=")[2].strip("'")), monitor="val/accuracy")
        trainer = SimpleNamespace(
            sanity_checking=False, global_step=5, callback_metrics={"val/accuracy": 0.1},
            strategy=SimpleNamespace(reduce_boolean_decision=lambda stops, all: stops),
        )  # fmt: skip
        callback.on_validation_end(trainer, None)  # no other trial has validated at step 5
        trainer.global_step = 10
        with pytest.raises(UserError, match="Stopped early at step 10: val/accuracy is worse"):
            callback.on_validation_end(trainer, None)
        search.tell(["Stopped early"])
        [_, trial] = search.study.trials
        assert (trial.state, search.ended) == (TrialState.PRUNED, 2)
        assert PRUNED in trial.user_attrs


@pytest.mark.slow
def test_a_search_as_typed_finds_its_finished_runs_and_goes_on(data, outputs):
    words = ("-m", "hydra/sweeper=optuna", *LINE, "optimizer.lr=tag(log,interval(1e-4,1e-2))", "backbone.dim=32,33")
    for trials in (3, 4):
        done = run_script(data, outputs, "train.py", *words, f"hydra.sweeper.n_trials={trials}")
        assert done.returncode == 0, done.stderr
        assert f"of {trials} trials finished" in done.stdout
    [place] = Path(outputs, "studies").glob("digits-*/trials.log")
    [name] = {path.parent.name for path in [place]}
    study = optuna.load_study(study_name=name, storage=storage_of(str(place)))
    runs = records.read_all(outputs / "runs")
    failed = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    assert len(runs) + len(failed) == 4
    assert {trial.params["backbone.dim"] for trial in failed} <= {"33"}
    assert study.best_value == max(run.metrics["val/accuracy"] for run in runs)
    assert not any(TRIAL in word for run in runs for word in run.overrides)
