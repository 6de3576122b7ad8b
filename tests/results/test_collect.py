"""What the page knows is what the outputs folder holds: no more, and nothing that cannot be read stops it."""

import os
import re

import pytest
from made_pages import ODD, ONE, OTHER, build, finish
from runs import FACTS

from subquad.config import choices
from subquad.config.compose import compose_run
from subquad.config.compositions import Composition
from subquad.records import Record, write_json
from subquad.report.html.site import write_site
from subquad.results import cells, store
from subquad.results import collect as gathering
from subquad.results import table as tables
from subquad.results.cell_results import Collector
from subquad.results.cells import RunIndex, load_table
from subquad.results.model import FULL, CellResult, CellResults, Run, Scope
from subquad.results.table import load
from subquad.results.verdict import Verdict


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.getbasetemp() / "made_pages")


def cell(made, row, column="Accuracy"):
    return made.content.tables[0].cells[row, column]


def test_a_protocol_that_is_the_tasks_own_is_found_without_a_choice():
    """Data of the user's are trained with protocol=clean, without an override that says so."""
    run = Run(key="", record=Record(**FACTS | {"scale": "paper", "protocol": "clean"}), command="")
    result = CellResult(scope=FULL, verdict=Verdict.NOT_PRINTED, values={0: 1.0}, runs=[run], text="1")
    found = CellResults(cell=None, anchor="", command="", results=(result,))
    assert found.within(FULL) is found.within(Scope(protocol="clean")) is result
    assert found.within(Scope("laptop", "clean")) is None


@pytest.mark.slow
def test_cells_have_the_means_and_verdicts_of_their_runs(made):
    softmax = cell(made, "Softmax").results[0]
    assert softmax.values == pytest.approx({0: 89.1, 1: 90.7})
    assert softmax.text == "89.9 ± 1.1"
    assert softmax.verdict is Verdict.REPRODUCED
    assert [run.record.seed for run in softmax.runs] == [0, 1]
    assert softmax.baselines == pytest.approx({"majority class": 10.1})
    dba = cell(made, "DBA").results[0]
    assert (dba.text, dba.verdict) == ("50.0", Verdict.INCOMPLETE)  # its other seed cannot be read
    assert cell(made, "Mean").results[0].values == pytest.approx({0: (89.1 + 50) / 2})


def test_measured_cells_say_where_they_were_measured_and_words_stay_words(made):
    width = cell(made, "Softmax", "Width").results[0]
    dim = compose_run(made.tables["one/1"].cells["Softmax", "Width"].overrides).backbone.dim
    assert width.values == {0: dim}
    assert width.verdict is (Verdict.REPRODUCED if dim == 192 else Verdict.MORE if dim > 192 else Verdict.LESS)
    assert {"machine", "torch", "commit", "measured", "note"} == width.measurement.keys()
    name = cell(made, "DBA", "Name").results[0]
    assert (name.text, name.verdict, name.summary) == ("digits", Verdict.NOT_PRINTED, None)
    assert cell(made, "DBA", "Width").results[0].text == ""


def test_what_was_not_run_has_no_number(made):
    for row in ("Broken", "Gone"):
        assert [(value.text, value.verdict) for value in cell(made, row).results] == [("", Verdict.NOT_RUN)]
    assert cell(made, "Gone").command == ""


def test_other_scales_and_made_up_data_stay_apart(made):
    full, laptop = cell(made, ODD).results
    assert (full.text, full.verdict) == ("", Verdict.NOT_RUN)
    assert (laptop.scope, laptop.text, laptop.verdict) == (Scope("laptop"), "33.3", Verdict.OTHER_SCALE)
    assert cell(made, ODD).verdict is Verdict.OTHER_SCALE
    _, synthetic = cell(made, "Softmax").results
    assert (synthetic.scope, synthetic.values) == (Scope("smoke", synthetic=True), pytest.approx({0: 12.3}))
    assert cell(made, "Softmax").verdict is Verdict.REPRODUCED
    assert made.content.tables[0].scopes == [FULL, Scope("laptop"), Scope("smoke", synthetic=True)]


def test_runs_that_no_cell_asks_for_are_ones_own(made):
    assert [run.record.task for run in made.content.own] == ["d\"'&"]
    assert len(made.content.runs) == 6


def test_what_cannot_be_read_is_named(made):
    assert {os.path.basename(problem.path) for problem in made.content.broken} == {
        "result.json", "metrics.csv", "garbled.json"
    }  # fmt: skip
    [failed] = made.content.failed
    assert failed.message == "There is no <folder>; make it."
    assert made.content.unfinished == 1


TWO = OTHER.replace("Performer: []}", 'Performer: [], Luna: ["attention=luna"]}')


def alone(folder, monkeypatch, name, text):
    """The only table that there is, and the overrides of its runs."""
    (folder / "table.yaml").write_text(text)
    table = load(folder / "table.yaml", name)
    monkeypatch.setattr("subquad.results.cells.load_table", {name: table}.__getitem__)
    return table, (f"paths.outputs={folder}/outputs",)


@pytest.mark.slow
def test_numbers_that_are_not_finite_stop_no_page(tmp_path, monkeypatch):
    table, words = alone(tmp_path, monkeypatch, "other/7", TWO)
    for (row, _), cell in table.cells.items():
        folder = RunIndex(words).spec(cell.overrides, 0).folder
        odd = {
            "test/accuracy": float("nan"),
            "val/accuracy": float("-inf"),
            "val/loss": float("nan"),
            "val/huge": 10**400,
        }
        finish(folder, 0.0, attention=row.lower(), **({"metrics": odd} if row == "Performer" else {}))
        (folder / "metrics.csv").write_text("step,val/accuracy,val/loss\n1,nan,inf\n2,0.5,nan\n3,0.6,-inf\n")
    content = gathering.gather(["other/7"], words)
    pages = write_site(tmp_path / "pages", content).parent
    values = {row: cell.results[0].values for (row, _), cell in content.tables[0].cells.items()}
    assert values == {"Performer": {}, "Luna": {0: 0.0}}
    [problem] = content.broken
    assert all(f"`{name}`" in problem.message for name in odd)
    assert len(list(pages.glob("runs/**/*-s0.html"))) == 2
    for page in pages.rglob("*.html"):
        assert not re.search(r"""[ "',(](nan|-?inf)[ "',)]""", "".join(re.findall("<svg.*?</svg>", page.read_text())))


@pytest.mark.slow
def test_seeds_that_were_trained_on_other_data_are_in_no_mean(tmp_path, monkeypatch):
    table, words = alone(tmp_path, monkeypatch, "one/1", ONE)
    softmax = next(each for each in table if each.trained)
    for seed, data in ((0, "this"), (1, "another")):
        finish(RunIndex(words).spec(softmax.overrides, seed).folder, 0.5 + seed / 4, seed=seed, data_fingerprint=data)
    found = gathering.gather(["one/1"], words).tables[0].cells[softmax.place].results[0]
    assert found.values == {0: 50.0}
    assert "was trained on other data than" in found.remarks[0]


@pytest.mark.slow
def test_mixed_precision_fills_a_cell_that_has_fewer_seeds_in_float32_and_is_said(tmp_path, monkeypatch):
    table, words = alone(tmp_path, monkeypatch, "one/1", ONE)
    softmax = next(each for each in table if each.trained)
    mixed = FACTS["config"] | {"data": {"synthetic": False}}
    mixed["trainer"] = mixed["trainer"] | {"precision": "bf16-mixed"}

    def finished(seed, accuracy, precision=""):
        folder = RunIndex(words).run_of(softmax, seed, precision).folder
        finish(folder, accuracy, seed=seed, **({"config": mixed} if precision else {}))
        return gathering.gather(["one/1"], words).tables[0].cells[softmax.place].results[0]

    assert finished(0, 0.5).remarks == []
    assert finished(0, 0.7, "bf16-mixed").values == {0: 50.0}
    found = finished(1, 0.7, "bf16-mixed")
    assert (found.values, found.remarks) == (pytest.approx({0: 70, 1: 70}), ["Trained in bf16-mixed."])
    assert finished(1, 0.5).values == {0: 50.0, 1: 50.0}
    in_bf16 = gathering.results_of(table, RunIndex([*words, "trainer.precision=bf16-mixed"])).cells[softmax.place]
    assert (in_bf16.results[0].values, in_bf16.results[0].remarks) == (found.values, found.remarks)


@pytest.mark.slow
def test_a_cell_of_other_data_than_the_others_has_no_value(tmp_path, monkeypatch):
    table, words = alone(tmp_path, monkeypatch, "other/7", TWO)
    for (row, _), cell in table.cells.items():
        finish(RunIndex(words).spec(cell.overrides, 0).folder, 0.5, attention=row.lower(), data_fingerprint=row)
    cells = gathering.gather(["other/7"], words).tables[0].cells
    first, second = (cell.results[0] for cell in cells.values())
    assert (first.values, second.values) == ({0: 50.0}, {})
    assert "was trained on other data than" in second.remarks[0]


@pytest.mark.slow
def test_a_strange_record_or_measurement_is_named_and_stops_no_page(tmp_path, monkeypatch):
    (tmp_path / "other.yaml").write_text(OTHER)
    table, words = load(tmp_path / "other.yaml", "other/7"), (f"paths.outputs={tmp_path}/outputs",)
    monkeypatch.setattr("subquad.results.cells.load_table", {"other/7": table}.__getitem__)
    [cell] = table
    finish(RunIndex(words).spec(cell.overrides, 0).folder, 0.5, attention="performer")
    of_the_cell = {"task": "digits", "attention": "performer"}
    strange: list[dict[str, object]] = [
        {"wall_seconds": float("nan")}, {"finished": 5}, {"machine": {}}, {"scale": None}, {"protocol": 7},
        {"scale": "no [such"}, {"protocol": "7"},
    ]  # fmt: skip
    for number, change in enumerate(strange):
        write_json(tmp_path / "outputs" / "runs" / str(number) / "result.json", FACTS | of_the_cell | change)
    for name, value in (("nan", float("nan")), ("list", [])):
        content = {"value": value, "measure": {}, "words": ["scale=zzz"]}
        facts = {key: FACTS[key] for key in ("machine", "versions", "commit", "finished")}
        write_json(tmp_path / "outputs" / "measured" / f"{name}.json", content | facts)
    content = gathering.gather(["other/7"], words)
    assert content.tables[0].cells["Performer", "Accuracy"].results[0].values == {0: 50.0}
    assert len(content.broken) == len(strange) + 2
    assert "There is no scale 'no [such' in configs/" in " ".join(problem.message for problem in content.broken)
    assert write_site(tmp_path / "pages", content).exists()


@pytest.mark.slow
def test_a_metric_that_no_record_has_is_named(tmp_path, monkeypatch):
    (tmp_path / "other.yaml").write_text(OTHER.replace("test/accuracy", "test/acuracy"))
    table, words = load(tmp_path / "other.yaml", "other/7"), (f"paths.outputs={tmp_path}/outputs",)
    monkeypatch.setattr("subquad.results.cells.load_table", {"other/7": table}.__getitem__)
    [wanted] = table
    finish(RunIndex(words).spec(wanted.overrides, 0).folder, 0.5, attention="performer")
    content = gathering.gather(["other/7"], words)
    [result] = content.tables[0].cells[wanted.place].results
    assert (result.text, result.unusable) == ("", True)
    [remark] = result.remarks
    assert "has no metric test/acuracy; did you mean test/accuracy" in remark
    write_site(tmp_path / "pages", content)
    assert "has no metric test/acuracy" in (tmp_path / "pages" / "tables" / "other" / "7.html").read_text()


def test_a_wrong_table_of_the_user_is_named_and_stops_no_page(tmp_path, monkeypatch):
    own = tmp_path / "own" / "table" / "mine"
    own.mkdir(parents=True)
    (own / "1.yaml").write_text(OTHER)
    (own / "2.yaml").write_text(OTHER.replace("title:", "titel:"))
    (own / "3.yaml").write_text(OTHER.replace("task=digits", "task=digitz"))
    monkeypatch.setenv(choices.OWN, str(tmp_path / "own"))
    content = gathering.gather(["mine/1", "mine/2", "mine/3"], [f"paths.outputs={tmp_path}/outputs"])
    assert [results.table.name for results in content.tables] == ["mine/1"]
    assert {problem.path: problem.message.partition(";")[0] for problem in content.broken} == {
        str(own / "2.yaml"): "Table mine/2: there is no key titel",
        str(own / "3.yaml"): 'There is no task "digitz"',
    }
    assert write_site(tmp_path / "pages", content).exists()


def test_a_wrong_table_is_read_once_whatever_asks_for_measured_cells(tmp_path, monkeypatch):
    """Each of the measurements that the project keeps asks for them."""
    own = tmp_path / "own" / "table" / "mine"
    own.mkdir(parents=True)
    (own / "1.yaml").write_text("rows: [\n")
    monkeypatch.setenv(choices.OWN, str(tmp_path / "own"))
    read = []
    monkeypatch.setattr(tables, "load", lambda file, name: (read.append(name), load(file, name))[1])
    store._measured_cells.cache_clear()
    cells._loaded.cache_clear()
    assert len(store._measured_cells()) == len(store._measured_cells()) > 900
    assert (read.count("mine/1"), read.count("dba/1")) == (1, 1)
    store._measured_cells.cache_clear()
    [problem] = gathering.gather(["mine/1"], [f"paths.outputs={tmp_path}/outputs"], check=False).broken
    assert (problem.path, problem.message.partition(":")[0]) == (str(own / "1.yaml"), "cannot be read (line 2")


@pytest.mark.slow
def test_a_run_by_the_default_protocol_of_its_task_is_shown_once(tmp_path, monkeypatch):
    overrides = ["task=uea/custom", "data.dataset=Mine", f"data.folder={tmp_path}", "attention=performer"]
    (tmp_path / "own.yaml").write_text(OTHER.replace("[task=digits, recipe=small_vit]", str(overrides)))
    table, words = load(tmp_path / "own.yaml", "own/1"), [f"paths.outputs={tmp_path}/outputs"]
    monkeypatch.setattr("subquad.results.cells.load_table", {"own/1": table}.__getitem__)
    [wanted] = table
    folder = RunIndex(words).spec(wanted.overrides, 0).folder
    finish(folder, 0.5, attention="performer", task="uea/custom", protocol="clean")
    [results] = gathering.gather(["own/1"], words, check=False).tables
    assert [(r.scope, r.text) for r in results.cells[wanted.place].results] == [(FULL, "50.0")]


def test_a_second_call_composes_nothing(made, monkeypatch):
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(made.outputs))
    monkeypatch.setattr("subquad.results.cells.load_table", made.tables.__getitem__)
    monkeypatch.setattr("subquad.config.compose.compose_run", None)  # would fail if called
    assert gathering.gather(list(made.tables), made.words).tables == made.content.tables


@pytest.fixture
def composed(monkeypatch):
    """The overrides of every configuration that a test composes."""
    found, of = [], Composition.of
    monkeypatch.setattr("subquad.utils.spread.usable_cores", lambda: 1)
    monkeypatch.setattr(Composition, "of", lambda words: (found.append(words), of(words))[1])
    return found


@pytest.mark.slow
def test_without_runs_only_data_are_asked_for_and_every_cell_is_a_dash(tmp_path, monkeypatch, composed):
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path))
    names = ["dba/1", "ecoformer/2", "linformer/2", "primal_dual/9", "blrp/1"]
    content = gathering.gather(names)
    assert not any("attention=" in word for words in composed for word in words)
    assert [part.table.name for part in content.tables] == names
    assert all(value.text == "" for table in content.tables for part in table.cells.values() for value in part.results)
    assert content.runs == content.own == content.broken == []


def test_one_table_composes_nothing_of_the_others(tmp_path, monkeypatch, real_store, composed):
    """Neither do their results that the project keeps, which only the check of all of them needs."""
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path))
    monkeypatch.setattr("subquad.results.store.FOLDER", real_store)
    assert gathering.gather_table("linformer/1").table.name == "linformer/1"
    assert not any("arena" in word for words in composed for word in words)


@pytest.mark.slow
def test_a_cell_whose_data_are_missing_says_so(tmp_path, monkeypatch):
    words = [f"paths.outputs={tmp_path}/outputs", f"paths.data={tmp_path}/data"]
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path))
    [table, averaged] = gathering.gather(["primal_dual/9", "dba/3"], words).tables
    with_sktime, without = (table.cells[row, "Softmax"] for row in ("BasicMotions", "Epilepsy"))
    assert (with_sktime.results[0].verdict, with_sktime.results[0].missing_data) == (Verdict.NOT_RUN, "")
    assert without.results[0].verdict is Verdict.NEEDS_DATA
    assert "scripts/prepare.py" in without.results[0].missing_data
    mean = averaged.cells["Average", "DBA"]
    assert (mean.results[0].verdict, mean.results[0].missing_data) == (
        Verdict.NEEDS_DATA, averaged.cells["EthanolConcentration", "DBA"].results[0].missing_data
    )  # fmt: skip


def test_tables_come_in_the_order_of_their_numbers():
    names = [name for name in gathering.all_tables() if name.startswith("dba/")]
    assert names == ["dba/1", "dba/1_training", *(f"dba/{number}" for number in range(2, len(names)))]


def test_the_task_of_a_record_is_its_choice():
    """Cells are matched with runs by it before anything is composed."""
    for task in ("uea/japanese_vowels", "lra/listops", "cifar/cifar10"):
        assert compose_run([f"task={task}"]).task.name == task


def test_runs_without_attention_fill_the_cells_without_attention_only():
    known = {("arena/recall", "none")}
    collector = Collector(scope=FULL, runs=RunIndex(), measured=lambda cell: None, known=known)
    cells = load_table("arena").cells
    assert collector._possible(cells["no attention", "recall 64"])
    assert not collector._possible(cells["no attention", "copying"])
    assert not collector._possible(cells["softmax", "recall 64"])
