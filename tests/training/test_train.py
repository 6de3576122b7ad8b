"""One run from its configuration to its record, and the errors of wrong configurations."""

import dataclasses
import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from hydra.errors import InstantiationException
from runs import (
    ROOT,
    TINY,
    answer,
    composed,
    has_record,
    identical,
    one_thread,
    prepared,
    program,
    record_of,
    run_script,
    sentences,
    trained,
    weights,
)

from subquad import records
from subquad.training.evaluation import evaluate
from subquad.training.summary import draw_curve, show
from subquad.utils.errors import UserError, _user_error

MOTIONS = ("task=uea/basic_motions", "attention=softmax", "scale=smoke", *TINY)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """A ListOps run started from the command line: its outputs folder and its output."""
    outputs = tmp_path_factory.mktemp("finished") / "outputs"
    return outputs, run_script(data, outputs, "train.py", "scale=smoke", "task=lra/listops", "trainer=cpu")


def test_a_run_leaves_a_record_checkpoints_history_and_a_curve(finished):
    outputs, done = finished
    assert done.returncode == 0, done.stderr
    run = record_of(outputs)
    record = records.read(run)
    assert run.name == f"{record.fingerprint}-s0"
    assert (record.task, record.attention, record.recipe, record.scale) == ("lra/listops", "dba", "luna", "smoke")
    assert record.overrides == ["scale=smoke", "task=lra/listops", "trainer=cpu"]
    assert record.steps == 4
    assert record.metrics.keys() == {"train/loss", "val/loss", "val/accuracy", "test/accuracy"}
    assert record.baselines.keys() == {"majority class", "root operator only"}
    assert record.rows == {"train": 64, "val": 32, "test": 32}
    assert (run / "curve.png").stat().st_size > 1000
    assert (run / "checkpoints" / "best.ckpt").exists()
    assert (run / ".hydra" / "config.yaml").exists()
    assert not (run / "error.json").exists()
    history = records.read_history(run / "metrics.csv")
    assert max(row.get("val/accuracy", 0) for row in history.values()) == record.metrics["val/accuracy"]
    assert "test/accuracy" in done.stdout
    assert "root operator only" in done.stdout
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


def test_a_finished_run_is_shown_and_not_trained_again(finished, data):
    """Also where nothing can be written in its folder: a file stands in the way here."""
    outputs, first = finished
    run = record_of(outputs)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.*") if ".hydra" not in path.parts}
    aside = (run / ".hydra").rename(run / "aside")
    (run / ".hydra").touch()
    paths = (f"paths.data={data}", f"paths.outputs={outputs}")
    again = answer("train.py", "scale=smoke", "task=lra/listops", "trainer=cpu", *paths)
    (run / ".hydra").unlink()
    aside.rename(run / ".hydra")
    assert again.returncode == 0, again.stderr
    assert "not trained again" in " ".join(again.stdout.split())
    assert "not trained again" not in first.stdout
    kept = {path: path.stat().st_mtime_ns for path in before}
    assert kept == before


def test_evaluating_the_best_checkpoint_gives_the_number_of_the_record(finished):
    run = record_of(finished[0])
    record = records.read(run)
    for split in ("test", "val"):
        with one_thread():
            name, now, recorded = evaluate(run, split)
        assert name == f"{split}/accuracy"
        assert now == recorded == record.metrics[name]
    with pytest.raises(UserError, match="no split"):
        evaluate(run, "train")
    with one_thread():
        assert evaluate(run.parent, "test")[1] == record.metrics["test/accuracy"]
    with pytest.raises(UserError, match="There is no finished run"):
        evaluate(run / "nowhere", "test")


def test_evaluating_on_other_data_is_refused(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(record_of(finished[0]), run)
    records.write(dataclasses.replace(records.read(run), data_fingerprint="other"), run)
    with one_thread(), pytest.raises(UserError, match="data differ"):
        evaluate(run, "test")


def test_the_report_shows_the_result_beside_the_baselines(finished, tmp_path, capsys):
    record = records.read(record_of(finished[0]))
    show(record, tmp_path, " (again)")
    shown = capsys.readouterr().out
    assert "(again)" in shown
    assert f"{record.metrics['test/accuracy']:.2%}" in shown
    assert f"{record.baselines['root operator only']:.2%}" in shown
    assert "best val/accuracy on the validation split" in shown
    assert "train 64, val 32, test 32" in shown
    for data, callbacks, text in (
        ({"protocol": "paper"}, {}, "best val/accuracy on the test split"),
        ({"protocol": "clean"}, {}, "best val/accuracy on held-out training rows"),
        ({}, {"best": {"monitor": None}}, "the last"),
    ):
        config = record.config | {"data": data, "callbacks": callbacks}
        show(dataclasses.replace(record, config=config), tmp_path)
        assert text in capsys.readouterr().out
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/accuracy\n3,1.5,0.25\n")
    draw_curve(record, tmp_path, "val/accuracy")
    assert (tmp_path / "curve.png").exists()


def test_regression_runs_from_end_to_end(data, outputs):
    record = trained(composed(data, outputs, "task=tser/covid3month", "attention=luna", "scale=smoke", *TINY))
    assert record.metrics.keys() == {"train/loss", "val/loss", "val/rmse", "test/rmse"}
    assert record.metrics["test/rmse"] > 0
    assert record.baselines.keys() == {"train mean (RMSE)"}


@pytest.mark.slow
def test_the_paper_protocol_tests_on_what_it_validates_on_and_the_clean_one_does_not(data, outputs):
    paper = trained(composed(data, outputs, *MOTIONS, "protocol=paper"))
    clean = trained(composed(data, outputs, *MOTIONS, "protocol=clean"))
    assert paper.metrics["val/accuracy"] == paper.metrics["test/accuracy"]
    assert paper.fingerprint != clean.fingerprint


def refused(data, outputs, *overrides):
    """The message of the UserError that ends a run, after checking that the run has written no record."""
    config = composed(data, outputs, *overrides)
    with pytest.raises((UserError, InstantiationException)) as caught:
        trained(config)
    error = _user_error(caught.value)
    assert error is not None, caught.value
    assert not has_record(outputs)
    assert (Path(config.paths.run) / "error.json").exists()
    return str(error)


def test_missing_data_name_the_folder_and_the_command(data, outputs):
    message = refused(data, outputs, "task=uea/handwriting", "scale=smoke")
    assert "Handwriting_TRAIN.ts" in message
    assert "scripts/prepare.py task=uea/handwriting" in message


def test_a_truncated_file_of_ones_own_is_named(data, outputs, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split in ("TRAIN", "TEST"):
        (folder / f"Mine_{split}.ts").write_text("@problemName Mine\n@classLabel true a b\n@data\n1,2,3:a\n1,2,")
    overrides = ("task=uea/custom", "data.dataset=Mine", f"data.folder={folder}", "scale=smoke")
    assert "Mine_TRAIN.ts" in refused(data, outputs, *overrides)


def test_a_damaged_cache_is_named(outputs, tmp_path):
    own = tmp_path / "data"
    own.mkdir()
    prepared(composed(own, outputs, "task=lra/listops", "scale=smoke"))
    [values] = own.rglob("train.values.npy")
    content = bytearray(values.read_bytes())
    content[-1] ^= 1
    values.write_bytes(content)
    message = refused(own, outputs, "task=lra/listops", "scale=smoke", *TINY)
    assert "damaged" in message
    assert "delete that folder" in message


def test_heads_that_do_not_divide_the_width_are_refused(data, outputs):
    assert "backbone.heads" in refused(data, outputs, *MOTIONS, "backbone.heads=5")


def test_a_loss_that_is_no_number_ends_the_run_and_a_better_try_replaces_its_error(data, outputs):
    message = refused(data, outputs, *MOTIONS, "optimizer.lr=1e30", "limits.epochs=3")
    assert "optimizer.lr" in message
    assert "loss became nan" in message


def test_a_classification_module_refuses_regression_data(data, outputs):
    message = refused(
        data, outputs, "task=tser/tecator", "task.module._target_=subquad.tasks.classification.Classification", *TINY
    )
    assert "real-valued targets" in message


def test_a_failed_run_is_tried_again_and_its_error_goes(data, outputs, monkeypatch):
    from subquad.tasks.supervised import Supervised

    config = composed(data, outputs, *MOTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(Supervised, "test_step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained(config)
    error = Path(config.paths.run) / "error.json"
    assert "ZeroDivisionError" in json.loads(error.read_text())["traceback"]
    trained(composed(data, outputs, *MOTIONS))
    assert not error.exists()


@pytest.mark.slow
def test_a_second_process_on_the_same_run_says_so(data, outputs):
    config = composed(data, outputs, *MOTIONS)
    Path(config.paths.run).mkdir(parents=True)
    with FileLock(Path(config.paths.run) / ".lock"), pytest.raises(UserError, match="Another process is training"):
        trained(config)
    assert trained(config).steps > 0


@pytest.mark.slow
def test_weights_to_start_from_are_used(data, outputs, tmp_path):
    first = composed(data, outputs, *MOTIONS)
    trained(first)
    for name in ("best.ckpt", "last.ckpt"):
        source = Path(first.paths.run) / "checkpoints" / name
        other = composed(data, tmp_path / name, *MOTIONS, "seed=1", "optimizer.lr=0", f"ckpt_path={source}")
        trained(other)
        start = weights(Path(other.paths.run))
        assert torch.equal(start["network.head.weight"], weights(Path(first.paths.run), name)["network.head.weight"])


def test_weights_that_do_not_fit_are_refused(data, outputs, tmp_path):
    assert "no weights for this model" in refused(data, outputs, *MOTIONS, f"ckpt_path={tmp_path}/none.ckpt")
    torch.save({"state_dict": {"x": torch.zeros(1)}}, tmp_path / "other.ckpt")
    assert "no weights for this model" in refused(data, outputs, *MOTIONS, f"ckpt_path={tmp_path}/other.ckpt")


def validated(run, metric):
    """The values of a metric of validation, by epoch."""
    return [row[metric] for row in records.read_history(run / "metrics.csv").values() if "val/loss" in row]


def test_the_last_checkpoint_is_tested_where_none_is_monitored(data, outputs):
    steps = ("limits.steps=4", "recipe.steps_per_epoch=1", "scheduler.warmup=1")
    overrides = ("task=lra/listops", "scale=smoke", *steps, *TINY)
    config = composed(data, outputs, *overrides, "optimizer.lr=0.1", "callbacks.best.monitor=null")
    record, run = trained(config), Path(config.paths.run)
    accuracies = validated(run, "val/accuracy")
    assert accuracies[-1] < max(accuracies)
    assert record.metrics["val/accuracy"] == accuracies[-1]
    assert identical(weights(run, "best.ckpt"), weights(run, "last.ckpt"))


@pytest.mark.parametrize("monitored", ["callbacks.best", "task"])
def test_the_best_epoch_may_be_that_of_the_least_loss(data, outputs, monitored):
    config = composed(data, outputs, *MOTIONS, f"{monitored}.monitor=val/loss", f"{monitored}.mode=min")
    record, run = trained(config), Path(config.paths.run)
    assert record.metrics["val/loss"] == min(validated(run, "val/loss"))
    assert "test/accuracy" in record.metrics
    assert (run / "curve.png").exists()


def test_a_run_that_ends_before_its_first_validation_says_so(data, outputs):
    overrides = ("task=lra/listops", "scale=smoke", "limits.steps=1", "recipe.steps_per_epoch=5", *TINY)
    assert "before its first validation" in refused(data, outputs, *overrides, "~callbacks.ends")


@pytest.mark.parametrize("interval", [1, 2])
def test_the_last_steps_are_validated_inside_an_epoch_too(data, outputs, interval):
    steps = ("limits.steps=3", "recipe.steps_per_epoch=2", f"+trainer.check_val_every_n_epoch={interval}")
    trained(composed(data, outputs, "task=lra/listops", "scale=smoke", *steps, *TINY))
    history = records.read_history(record_of(outputs) / records.HISTORY)
    assert [step for step, row in history.items() if "val/loss" in row] == [1, 2]


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("attention=dba attention.d_p=0", "attention.d_p is 0; choose a whole number from 1"),
        ("attention=dba attention.mask=foo", "attention.mask is foo; choose logits or none"),
        ("attention=local attention.window=1.5", "attention.window is 1.5; choose a whole number from 0"),
        ("backbone.norm=btach", "backbone.norm is btach; choose batch or layer"),
        ("data.pad=longest", "data.pad is longest; choose max_len or batch"),
        ("backbone.dropout=3.5", "backbone.dropout is 3.5; choose a number from 0 up to 1"),
        ("seed=-1", "seed is -1"),
        ("trainer.precision=abc", "Precision 'abc' is invalid"),
    ],
)
def test_numbers_that_make_no_sense_are_named(data, outputs, word, cause):
    assert cause in refused(data, outputs, *MOTIONS, *word.split())


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (["attention=dbaa"], 'There is no attention "dbaa"'),
        (["-m", "attention=glob(zz*)"], "selects nothing"),
        (["backbone.widht=3"], "widht"),
        pytest.param(
            ["task=uea/handwriting", "scale=smoke"], "subquad prepare task=uea/handwriting", marks=pytest.mark.slow
        ),
    ],
    ids=["misspelt choice", "empty glob", "unknown key", "missing data"],
)
def test_the_command_line_fails_with_one_sentence(data, outputs, overrides, cause):
    done = run_script(data, outputs, "train.py", *overrides)
    assert done.returncode != 0
    assert cause in done.stderr
    assert "Traceback" not in done.stderr
    assert len(sentences(done.stderr)) <= 8
    assert not has_record(outputs)


PROGRAMS = sorted(p.stem for p in (ROOT / "scripts").glob("*.py") if "__main__" in p.read_text())


@pytest.mark.parametrize("script", PROGRAMS)
def test_scripts_answer_help(script):
    done = answer(f"scripts/{script}.py", "--help")
    assert done.returncode == 0
    assert done.stdout.strip()[0].isupper()
    assert f"{'check_attention' if script == 'check' else script}.py" in done.stdout or script == "describe"


def test_an_evaluation_without_a_run_asks_for_one(data, outputs):
    done = run_script(data, outputs, "eval.py")
    assert done.returncode == 1
    assert done.stderr.startswith("Name a run")


@pytest.mark.slow
def test_a_sweep_writes_a_record_for_each_combination(data, outputs):
    overrides = ("-m", "attention=softmax,dba", "seed=0,1", "task=uea/basic_motions", "scale=smoke", *TINY)
    done = run_script(data, outputs, "train.py", *overrides)
    assert done.returncode == 0, done.stderr
    found = records.read_all(outputs / "runs")
    assert {(r.attention, r.seed) for r in found} == {("softmax", 0), ("softmax", 1), ("dba", 0), ("dba", 1)}
    assert len({r.fingerprint for r in found}) == 2


@pytest.mark.slow
def test_the_evaluation_program_prints_both_numbers(finished, data):
    outputs, _ = finished
    run = record_of(outputs)
    done = answer("eval.py", f"run={run}")
    assert done.returncode == 0, done.stderr
    number = f"{records.read(run).metrics['test/accuracy']:.6f}"
    assert f"test/accuracy {number} (record: {number})" in done.stdout
    assert f"record: {number}" in answer("eval.py", f"run={run.parent}").stdout
    assert "+trainer=gpu has no effect on a finished run" in answer("eval.py", f"run={run}", "+trainer=gpu").stderr
    missing = answer("eval.py", f"run={data}")
    assert missing.returncode != 0
    assert "There is no finished run" in missing.stderr
    assert "Traceback" not in missing.stderr


@pytest.mark.slow
def test_two_processes_on_one_run_the_second_says_so(data, outputs):
    import subprocess

    overrides = (*MOTIONS, "limits.epochs=4000")
    command, settings = program(data, outputs, "train.py", *overrides)
    first = subprocess.Popen(command, **settings)
    try:
        deadline = time.monotonic() + 60
        while not list(outputs.rglob("last.ckpt")) and time.monotonic() < deadline:
            time.sleep(0.05)
        second = run_script(data, outputs, "train.py", *overrides)
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
    assert second.returncode != 0
    assert "Another process is training this run" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("task=lra/text", "data.max_len=0"), "data.max_len is 0; choose a whole number from 1"),
        (("task=digits", "data.val_fraction=x"), "val_fraction"),
        (("task=uea/custom",), "A setting is missing"),
        (("task=lra/text", "data.cases=-1"), "data.cases is -1; choose a whole number from 1"),
        (("task=imagenet", "backbone=vit", "backbone.pretrained=hub:nobody"), "timm has no model nobody"),
    ],
)
def test_what_cannot_be_prepared_is_answered_by_a_sentence(data, outputs, overrides, sentence):
    done = answer("scripts/prepare.py", *overrides, "data=synthetic", f"paths.data={data}", f"paths.outputs={outputs}")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
