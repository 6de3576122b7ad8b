"""Tables: the runs that their cells need, the values of finished runs, and the command that trains the rest."""

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest
from runs import answer, finish, run_script

from subquad import records
from subquad.config.choices import CONFIGS
from subquad.config.compose import compose_run
from subquad.config.fingerprint import identity
from subquad.data.text.own_texts import OwnTexts
from subquad.results.cells import RunIndex, load_table
from subquad.results.collect import results_of
from subquad.results.measurement_cache import measure, path_of
from subquad.results.table import load
from subquad.results.verdict import Verdict, cell_verdict
from subquad.utils.errors import UserError

TABLE = """
title: Two rows
source: nowhere
seeds: 2
overrides: [task=digits, recipe=small_vit]
metric: {name: test/accuracy, scale_by: 100, unit: "%"}
columns:
  Accuracy: []
  Twice: []
  Width: {measure: {_target_: subquad.results.measures.setting, key: backbone.dim}, metric: {better: equal}}
rows:
  Softmax: [attention=softmax]
  DBA: [attention=dba]
  Mean: {mean: true}
printed:
  Softmax: 90.0±1.0 90.0 192
  DBA: 91.0 91.0 1
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text(TABLE)
    return load(path, "two")


@pytest.fixture
def runs(tmp_path):
    return RunIndex([f"paths.outputs={tmp_path}/outputs", "scale=smoke"])


def values_of(table, runs, seeds):
    found = results_of(table, runs, seeds=seeds)
    return {place: cell.results[0].values for place, cell in found.cells.items()}


def remarks_of(table, runs, seeds):
    remarks = {}
    for place, cell in results_of(table, runs, seeds=seeds).cells.items():
        for remark in cell.results[0].remarks:
            remarks.setdefault(remark, []).append(place)
    return remarks


def test_cells_that_share_a_run_share_its_job(table, runs):
    jobs = runs.specs(table, [0, 1])
    assert len(jobs) == 4  # two rows, two seeds; both accuracy columns show the same run
    assert [job.overrides[-1] for job in jobs] == ["seed=0", "seed=0", "seed=1", "seed=1"]
    assert len({job.folder for job in jobs}) == 4
    assert not any(job.finished for job in jobs)


@pytest.mark.slow
def test_each_cell_has_as_many_runs_as_it_declares_and_those_that_are_asked_for(runs):
    table = load_table("blrp/1").select(["BLRP"], ["ListOps", "CIFAR-10 64", "CIFAR-10 128"])
    assert {place[1]: len(jobs) for place, jobs in runs.cells(table, None).items()} == {
        "ListOps": 4, "CIFAR-10 64": 5, "CIFAR-10 128": 5,
    }  # fmt: skip
    assert len(runs.specs(table, None)) == 9
    assert len(runs.specs(table, [7])) == 2
    cell = table.cells["BLRP", "ListOps"]
    assert cell_verdict(cell, dict.fromkeys(range(4), 41.43), full=True) is Verdict.REPRODUCED
    assert cell_verdict(cell, dict.fromkeys(range(3), 41.43), full=True) is Verdict.INCOMPLETE


def test_the_folder_of_a_job_is_where_train_py_puts_the_run(table, runs):
    for job in runs.specs(table, [1]):
        assert job.folder == Path(compose_run(job.overrides).paths.run)
        assert job.folder.name == f"{records.fingerprint(identity(compose_run(job.overrides)))}-s1"


def test_values_are_those_of_finished_runs_and_a_missing_one_is_no_number(table, runs):
    softmax0, dba0, softmax1, _ = runs.specs(table, [0, 1])
    finish(softmax0, 0.9)
    finish(softmax1, 0.92)
    finish(dba0, 0.5)
    assert softmax0.finished
    values = values_of(table, runs, [0, 1])
    assert values["Softmax", "Accuracy"] == pytest.approx({0: 90, 1: 92})
    assert values["DBA", "Accuracy"] == {0: 50}
    assert values["Mean", "Accuracy"] == {0: 70}  # seed 1 lacks a column
    assert values["Softmax", "Width"] == {}
    assert values_of(table, runs, [1])["DBA", "Accuracy"] == {}


def test_a_record_that_is_of_no_use_empties_its_cells_and_no_others(table, runs):
    softmax0, dba0, softmax1, _ = runs.specs(table, [0, 1])
    finish(softmax0, 0.9)
    finish(softmax1, float("nan"))
    finish(dba0, 0.5)
    (dba0.folder / records.RESULT).write_text("{")
    values = values_of(table, runs, [0, 1])
    assert values["Softmax", "Accuracy"] == pytest.approx({0: 90})
    assert values["DBA", "Accuracy"] == values["Mean", "Accuracy"] == {}
    [(nan, of_softmax), (damaged, of_dba)] = remarks_of(table, runs, [0, 1]).items()
    assert "test/accuracy of the run" in nan
    assert f"{softmax1.folder.name} is nan" in nan
    assert "is not a record of this version" in damaged
    assert "delete it" in damaged
    assert (of_softmax, of_dba) == (
        [("Softmax", "Accuracy"), ("Softmax", "Twice")],
        [("DBA", "Accuracy"), ("DBA", "Twice")],
    )


def test_the_record_of_another_run_fills_no_cell(table, runs):
    dba0, softmax1 = runs.specs(table, [0, 1])[1:3]
    finish(dba0, 0.5)
    softmax1.folder.mkdir(parents=True)
    shutil.copy(dba0.folder / records.RESULT, softmax1.folder)
    assert values_of(table, runs, [1])["Softmax", "Accuracy"] == {}
    assert "belongs to another run" in next(iter(remarks_of(table, runs, [1])))


def test_an_override_of_one_run_never_enters_a_table(table, runs):
    finish(runs.spec(("task=digits", "recipe=small_vit", "attention=dba", "attention.d_p=3"), 0), 0.99)
    assert values_of(table, runs, [0])["DBA", "Accuracy"] == {}


def test_editing_an_attention_empties_the_cells_that_used_it_and_no_others(table, runs, tmp_path, monkeypatch):
    edited = tmp_path / "configs"
    shutil.copytree(CONFIGS, edited)
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path))
    monkeypatch.setattr("subquad.config.choices.CONFIGS", edited)
    for job in runs.specs(table, [0]):
        finish(job, 0.9)
    runs.compositions.save()
    choice = edited / "attention" / "dba.yaml"
    choice.write_text(choice.read_text().replace("d_p: 16", "d_p: 8"))
    values = values_of(table, RunIndex(runs.overrides), [0])
    assert values["Softmax", "Accuracy"] == pytest.approx({0: 90})
    assert values["DBA", "Accuracy"] == values["DBA", "Twice"] == values["Mean", "Accuracy"] == {}


def test_verdicts_need_full_runs_and_all_seeds(table):
    cell, width = table.cells["Softmax", "Accuracy"], table.cells["DBA", "Width"]
    assert cell_verdict(cell, {}, full=True) is Verdict.NOT_RUN
    assert cell_verdict(cell, {0: 90.5, 1: 89.9}, full=True) is Verdict.REPRODUCED
    assert cell_verdict(cell, {0: 90.5, 1: 89.9}, full=False) is Verdict.OTHER_SCALE
    assert cell_verdict(cell, {0: 90.5}, full=True) is Verdict.INCOMPLETE
    assert cell_verdict(table.cells["Mean", "Accuracy"], {0: 1.0}, full=True) is Verdict.INCOMPLETE
    assert cell_verdict(table.cells["Mean", "Accuracy"], {0: 1.0, 1: 1.0}, full=True) is Verdict.NOT_PRINTED
    assert cell_verdict(width, {0: 1.0}, full=False) is Verdict.AS_PRINTED
    assert cell_verdict(width, {0: 2.0}, full=False) is Verdict.MORE


def test_a_measured_cell_is_measured_once(table, tmp_path):
    cell, runs = table.cells["Softmax", "Width"], RunIndex([f"paths.outputs={tmp_path}"])
    assert not path_of(cell, runs).exists()
    found = measure(cell, runs)
    assert found.value == compose_run(cell.overrides).backbone.dim
    assert records.read_measurement(path_of(cell, runs)) == found
    assert not path_of(table.cells["DBA", "Width"], runs).exists()  # another configuration
    [path] = (tmp_path / "measured").iterdir()
    path.write_text("{")
    with pytest.raises(UserError, match="is not a measurement of this version"):
        records.read_measurement(path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("attention.dp=3", 'Row DBA, column Accuracy: There is no setting "dp" in attention'),
        ("data.batch_size=0", r"attention=dba data\.batch_size=0 .*: data\.batch_size is 0; choose a whole number"),
    ],
)
def test_a_row_that_cannot_be_composed_or_read_is_named(tmp_path, wrong, said):
    (tmp_path / "table.yaml").write_text(TABLE.replace("[attention=dba]", f"[attention=dba, {wrong}]"))
    with pytest.raises(UserError, match=said):
        results_of(
            load(tmp_path / "table.yaml", "two"), RunIndex([f"paths.outputs={tmp_path}", "data.synthetic=false"])
        )


def test_an_unknown_table_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r'There is no table "dba/0"; did you mean dba/\d+ or '):
        load_table("dba/0")


def reproduce(outputs, *words, way=answer):
    with mock.patch.dict(os.environ, SUBQUAD_OUTPUTS=str(outputs), COLUMNS="150"):
        return way("scripts/reproduce.py", *words)


@pytest.mark.slow
def test_one_command_trains_what_is_missing_and_shows_the_table(tmp_path):
    words = ("table=dba/2", "rows=[DBA]", "columns=[ListOps,Avg.]", "seeds=[0]", "scale=smoke", "data=synthetic")
    first = reproduce(tmp_path, *words, way=lambda *command: run_script(tmp_path / "data", tmp_path, *command))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "1 run is to be trained" in first.stdout
    [record] = records.read_all(tmp_path)
    assert (record.attention, record.task, record.scale) == ("dba", "lra/listops", "smoke")
    assert f"{100 * record.metrics['test/accuracy']:.2f} (38.10±0.40)" in first.stdout
    assert "no reproduction" in first.stdout
    again = reproduce(tmp_path, *words)
    assert "to be trained" not in again.stdout
    assert "(38.10±0.40)" in again.stdout
    assert "- (38.10±0.40)" in reproduce(tmp_path, *words[:-2], "run=false").stdout  # no run of scale=paper


@pytest.mark.slow
def test_finished_runs_on_files_that_have_changed_are_refused(tmp_path, monkeypatch):
    OwnTexts.write_synthetic(tmp_path)
    table = tmp_path / "configs" / "table" / "mine" / "1.yaml"
    table.parent.mkdir(parents=True)
    own = f"[task=text/custom, data.train={tmp_path}/train.csv, data.tokenizer=bytes, data.max_len=32]"
    head = f"title: t\nsource: s\nseeds: 1\noverrides: {own}\nmetric: {{name: test/accuracy}}\n"
    table.write_text(f"{head}columns: {{Accuracy: []}}\nrows: {{Linear: [attention=linear]}}\n")
    monkeypatch.setenv("SUBQUAD_CONFIGS", str(tmp_path / "configs"))
    words = ("table=mine/1", "scale=smoke")
    assert reproduce(tmp_path, *words).returncode == 0
    with (tmp_path / "train.csv").open("a") as file:
        file.write((tmp_path / "train.csv").read_text().splitlines()[-1] + " \n")
    again = reproduce(tmp_path, *words)
    assert again.returncode == 1
    assert "The data differ from those this run was trained on" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Which table"),
        (["table=dba/2", "rows=[BDA]"], "has no row BDA; its rows are Vanilla Transformer"),
        (["table=dba/2", "seeds=[]"], "Nothing is selected"),
        (["table=dba/2", "columns=[Avg.]"], "Nothing is selected"),
        (["table=dba/2", "attention.d_p=3"], "attention= adds one row to one table"),
        (["table=dba/2", "task=digits"], "takes table, rows"),
        (["table=dba/2", "rows=%s"], "rows=%s: expected '<document start>'"),
        (["table=dba/2", "rows=${backbone}"], "rows=${backbone}: Interpolation key 'backbone' not found"),
        (["table=dba/2", "compare=[DBA,Lunar]"], "must name two rows or two columns of table dba/2"),
    ],
)
def test_a_wrong_word_is_answered_in_a_sentence(tmp_path, words, said):
    found = reproduce(tmp_path, *words)
    assert found.returncode == 1
    assert said in found.stderr
    assert "Traceback" not in found.stderr


def test_a_damaged_record_is_told_below_the_table(tmp_path):
    runs = RunIndex([f"paths.outputs={tmp_path}"])
    jobs = runs.specs(load_table("primal_dual/9").select(["BasicMotions"], ["Softmax", "Attention-BN"]), [0])
    for job in jobs:
        finish(job, 0.5)
    (jobs[0].folder / records.RESULT).write_text("")
    shown = reproduce(tmp_path, "table=primal_dual/9", "rows=[BasicMotions]", "run=false", "seeds=[0]")
    assert shown.returncode == 1
    assert "50.00" in shown.stdout
    assert f"{jobs[0].folder}/result.json is damaged, or is not a record of this version" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("reproduce", ("table=dba/2", "rows=[DBA]", "seeds=[0]", "scale=smoke", "data=synthetic")),
        ("report", ("table=blrp/1", "format=markdown", "output=/dev/null/x/y")),
    ],
)
def test_an_outputs_folder_that_cannot_be_written_is_told_in_a_sentence(tmp_path, script, words):
    (tmp_path / "file").write_text("")
    outputs = tmp_path / "file" / "outputs"
    done = reproduce(outputs, *words, way=lambda _, *given: answer(f"scripts/{script}.py", *given))
    assert done.returncode == 1
    assert "cannot be read or written (Not a directory); move the file /" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_rows_are_compared_below_the_table(tmp_path, monkeypatch, real_store):
    runs = RunIndex([f"paths.outputs={tmp_path}"])
    table = load_table("primal_dual/9").select(["BasicMotions", "Epilepsy"], ["Softmax", "Attention-BN"])
    for number, job in enumerate(runs.specs(table, [0, 1, 2])):
        finish(job, 0.5 + number / 100)
    words = ("table=primal_dual/9", "rows=[BasicMotions,Epilepsy]", "run=false", "seeds=[0,1,2]")
    shown = reproduce(tmp_path, *words, "compare=[Attention-BN,Softmax]")
    assert shown.returncode == 0, shown.stderr
    assert "BasicMotions: no difference shown; mean difference +1 points [+1, +1] (95%), p = 0.250" in shown.stdout
    assert "All: no difference shown: Attention-BN is ahead of Softmax on 2 of 2" in shown.stdout
    monkeypatch.setattr("subquad.results.store.FOLDER", real_store)
    chosen = (*words[:1], "rows=[BasicMotions]", "run=false", "compare=[Softmax,Attention-BN]")
    kept = reproduce(tmp_path / "elsewhere", *chosen)
    assert "BasicMotions: no difference shown; mean difference +0 points" in kept.stdout
    assert kept.stdout.splitlines()[-1].endswith("5 common seeds.")  # of the runs that the project keeps
    assert "2 common seeds." in reproduce(tmp_path / "elsewhere", *chosen, "seeds=[0,3]").stdout
