"""The results that the project keeps: what is added, what is refused, how they stand beside one's own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from made_pages import finish
from runs import FACTS

from subquad import records
from subquad.cli import results as command
from subquad.config.compositions import Compositions
from subquad.report.html.site import write_site
from subquad.report.markdown_latex import latex, markdown
from subquad.report.terminal import show_table
from subquad.report.wandb_table import COLUMNS, table_rows
from subquad.results import benches, store
from subquad.results.cells import RunIndex
from subquad.results.collect import gather, gather_project, results_of
from subquad.results.measurement_cache import measure
from subquad.results.model import FULL, PROJECT
from subquad.results.store import Store, stored_measurement, stored_run
from subquad.results.table import load
from subquad.results.verdict import Verdict
from subquad.utils.errors import UserError

OVERRIDES = ["task=digits", "recipe=small_vit", "attention=softmax"]
TABLE = """
title: One row
source: Doe et al. 2024, https://example.org/x, Table 1
seeds: 2
overrides: [task=digits, recipe=small_vit]
metric: {name: test/accuracy, scale_by: 100, unit: "%"}
columns:
  Accuracy: []
  Width:
    measure: {_target_: subquad.results.measures.setting, key: backbone.dim}
    metric: {name: value, scale_by: 1, better: equal}
rows: {Softmax: [attention=softmax]}
printed: {Softmax: "90.0±1.0 192"}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An outputs folder with two seeds of a cell and a measurement, and an empty store; the table of the cell."""
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setattr(store, "FOLDER", tmp_path / "store")
    (tmp_path / "one.yaml").write_text(TABLE)
    table = load(tmp_path / "one.yaml", "one/1")
    monkeypatch.setattr("subquad.results.cells.load_table", {"one/1": table}.__getitem__)
    monkeypatch.setattr(store, "_measured_cells", lambda: [cell for cell in table.cells.values() if cell.measure])
    for seed in (0, 1):
        finish(folder(seed), 0.89 + seed / 50, seed=seed, finished=f"2026-01-0{seed + 1}T10:00:00+00:00")
        overrides = [
            *OVERRIDES,
            f"seed={seed}",
            "trainer=cpu",
            "logger=csv",
            "paths.data=/elsewhere",
            "paths.run=/a/run",
        ]
        (folder(seed) / ".hydra" / "overrides.yaml").write_text(json.dumps(overrides))
    monkeypatch.setattr("subquad.measure.machine._commit", lambda: "abc123")
    measure(table.cells["Softmax", "Width"], RunIndex())
    return tmp_path, table


def folder(seed):
    return RunIndex().spec(OVERRIDES, seed).folder


def add(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["results.py", *map(str, arguments)])
    return command.main()


@pytest.mark.slow
def test_kept_results_fill_cells_of_somebody_who_has_run_nothing(place, monkeypatch, capsys):
    base, table = place
    assert add(monkeypatch, "add", base / "outputs") == 0
    assert "Added 2 runs and 1 measurement to" in capsys.readouterr().out
    kept = Store.read()
    assert kept.broken == []
    assert [run.overrides for run in kept.runs.values()] == [OVERRIDES, OVERRIDES]
    first = (base / "store" / "runs" / "digits.jsonl").read_text()
    kept.write()
    assert (base / "store" / "runs" / "digits.jsonl").read_text() == first

    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(base / "elsewhere"))
    content = gather(["one/1"])
    [results] = content.tables
    accuracy, width = results.cells["Softmax", "Accuracy"], results.cells["Softmax", "Width"]
    assert [result.text for result in accuracy.results] == ["", "90.0 ± 1.4"]
    assert (accuracy.verdict, accuracy.decisive.scope) == (Verdict.REPRODUCED, PROJECT)
    assert (width.within(FULL).text, width.within(PROJECT).text) == ("", "64")
    assert (len(content.runs), len(content.project), content.outdated) == (0, 2, [])
    assert "90.0 ± 1.4° (90.0±1.0), reproduced" in markdown(results)
    assert "1 reproduced" in write_site(base / "pages", content).read_text()
    clean = replace(PROJECT, protocol="clean")  # sorts before the protocol of the papers by its name
    own = replace(accuracy, results=(*accuracy.results, replace(accuracy.results[1], scope=clean)))
    assert replace(results, cells={**results.cells, own.cell.place: own}).scopes == [FULL, PROJECT, clean]
    assert r"90.0 $\pm$ 1.4$^{\mathrm{p\,r}}$" in latex(results)
    pages = write_site(base / "pages", content).parent
    assert "measured by the project" in (pages / "tables/one/1.html").read_text()
    assert all((pages / f"runs/{run.key}.html").exists() for run in content.project)

    row = table_rows(results_of(table, RunIndex()), FULL)[0]
    assert row[COLUMNS.index(PROJECT.label)] == pytest.approx(90.0)
    assert row[COLUMNS.index("verdict")] == "not run"


def test_a_table_of_kept_results_has_only_their_rows_columns_and_notes(place, monkeypatch):
    base, _ = place
    add(monkeypatch, "add", base / "outputs" / "runs")
    rows = "{Softmax: {overrides: [attention=softmax], note: Kept.}, Luna: {overrides: [attention=luna], note: Lost.}}"
    (base / "two.yaml").write_text(TABLE.replace("{Softmax: [attention=softmax]}", rows))
    whole = results_of(load(base / "two.yaml", "two/1"), RunIndex())
    every, kept = markdown(whole), markdown(whole, PROJECT)
    words = ("Softmax", "Kept.", "Luna", "Lost.", "Width")
    assert [word for word in words if word in every] == [*words]
    assert [word for word in words if word in kept] == ["Softmax", "Kept."]


@pytest.mark.slow
def test_a_measurement_is_looked_for_in_its_own_scope_only(place, monkeypatch):
    base, table = place
    add(monkeypatch, "add", base / "outputs")
    cell, kept = table.cells["Softmax", "Width"], Store.read()
    full, laptop = RunIndex(), RunIndex(["scale=laptop"])
    monkeypatch.setattr(laptop, "composition", lambda cell: pytest.fail("takes 20 ms, for each cell of all tables"))
    assert kept.measurement(laptop, cell) is None
    assert kept.measurement(full, cell).value == 64


def test_repeated_runs_have_the_same_numbers_or_those_that_differ_are_named(place, monkeypatch, capsys):
    base, _ = place
    add(monkeypatch, "add", base / "outputs")
    capsys.readouterr()

    def train(arguments, env, **_):
        assert arguments[1:6] == ["-m", "subquad.cli.train", *OVERRIDES]
        assert env["OMP_NUM_THREADS"] == "2"
        seed, outputs = (argument.partition("=")[2] for argument in arguments[6:])
        machine = FACTS["machine"] | {"vectors": "AVX512"}
        run = Path(outputs) / "runs" / folder(int(seed)).name
        finish(run, {"0": 0.89, "1": 0.5}[seed], seed=int(seed), machine=machine)
        return CompletedProcess(arguments, 0, "")

    monkeypatch.setattr("subprocess.run", train)
    assert add(monkeypatch, "repeat") == 1
    said = capsys.readouterr().out
    assert "seed=0: the same numbers" in said
    assert "seed=1: test/accuracy is 0.5, kept 0.91; kept from A <CPU> (vector instructions not recorded)" in said
    assert "here A CPU (AVX512), which may round differently" in said
    assert "2 runs trained again; 1 with other numbers, 0 failed" in said
    monkeypatch.setattr("subprocess.run", lambda arguments, **_: CompletedProcess(arguments, 1, "No\nspace left"))
    assert add(monkeypatch, "repeat") == 1
    said = capsys.readouterr().out
    assert said.count(" failed: No space left") == 2
    assert "0 runs trained again; 0 with other numbers, 2 failed" in said


@pytest.mark.slow
def test_kept_results_stand_behind_ones_own(place, monkeypatch, capsys):
    base, table = place
    add(monkeypatch, "add", base / "outputs")
    for seed in (0, 1):
        finish(folder(seed), 0.5, seed=seed)
    [results] = gather(["one/1"]).tables
    assert results.cells["Softmax", "Accuracy"].verdict is Verdict.WORSE
    assert "50.0 ± 0.0 (90.0±1.0), worse" in markdown(results)
    capsys.readouterr()
    show_table(results_of(table, RunIndex()), FULL)
    assert "50.0 ± 0.0 90.0 ± 1.4° (90.0±1.0)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_kept_result_is_replaced_on_request_only(place, monkeypatch, capsys):
    base, _ = place
    add(monkeypatch, "add", base / "outputs")
    finish(folder(0), 0.5)
    (folder(0) / ".hydra" / "overrides.yaml").write_text(json.dumps(OVERRIDES))
    name = folder(0).name
    assert add(monkeypatch, "add", folder(0)) == 0
    assert Store.read().runs[name].metrics["test/accuracy"] == 0.89
    copy = shutil.copytree(folder(0), base / "copy")
    assert add(monkeypatch, "add", copy) == 0
    assert Store.read().runs[name].metrics["test/accuracy"] == 0.89
    assert add(monkeypatch, "add", folder(0), "again=true") == 0
    assert Store.read().runs[name].metrics["test/accuracy"] == 0.5


def test_a_kept_result_keeps_its_place_when_others_are_added(place, monkeypatch):
    base, _ = place
    add(monkeypatch, "add", base / "outputs")
    [kept] = Store.read().measurements.values()
    target = kept.measure["_target_"]
    new = [
        replace(kept, name="0" * 12, measure={"_target_": target, "key": "b"}),
        replace(kept, name="1" * 12, measure={"key": "a", "_target_": target}),
    ]
    Store.read().with_results(measurements=new).write()
    written = (base / "store" / "measurements" / "setting.jsonl").read_text()
    Store.read().write()
    assert (base / "store" / "measurements" / "setting.jsonl").read_text() == written


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"synthetic": True}, "synthetic"),
        ({"commit": "abc123+changes"}, "clean checkout"),
        ({"commit": "unknown"}, "clean checkout"),
        ({"metrics": {"test/accuracy": float("nan")}}, "no result"),
    ],
)
def test_what_is_no_result_is_refused(place, change, reason):
    finish(folder(0), 0.9, **change)
    with pytest.raises(UserError, match=reason):
        stored_run(folder(0), Compositions())


@pytest.mark.parametrize(
    ("config", "what"),
    [({"code": {"mine.Mine": "1"}}, "mine.Mine"), ({"data": {"folder": "/home/me/series"}}, "files of yours")],
)
def test_what_nobody_else_has_is_refused(place, config, what):
    finish(folder(0), 0.9, config=FACTS["config"] | config)
    with pytest.raises(UserError, match=f"was trained with {what}, which nobody else has"):
        stored_run(folder(0), Compositions())


def test_an_evaluation_without_a_finite_number_is_refused(place):
    records.write_evaluation(folder(0), {"pairs": 8}, {"test/accuracy": float("nan")}, {"commit": "abc123"})
    with pytest.raises(UserError, match="is nan, which is no result"):
        stored_run(folder(0), Compositions())


def test_an_evaluation_by_code_that_nobody_can_look_up_is_refused(place):
    records.write_evaluation(folder(0), {"pairs": 8}, {"test/accuracy": 0.5}, {"commit": "abc123+changes"})
    with pytest.raises(UserError, match=r"evaluations/\w+.json was made by the source abc123\+changes"):
        stored_run(folder(0), Compositions())


def test_a_run_that_only_tests_whether_it_runs_is_left_out(place, monkeypatch, capsys):
    words = [*OVERRIDES, "scale=smoke"]
    run = RunIndex().spec(words, 0).folder
    finish(run, 0.9, scale="smoke")
    (run / ".hydra" / "overrides.yaml").write_text(json.dumps(words))
    assert add(monkeypatch, "add", run) == 0
    assert "Added 0 runs" in (shown := capsys.readouterr().out)
    assert "1 at scale=smoke left out" in shown


def test_a_result_of_other_settings_is_refused(place, monkeypatch, capsys):
    base, _ = place
    (folder(0) / ".hydra" / "overrides.yaml").write_text(json.dumps([*OVERRIDES, "backbone.dim=8"]))
    (folder(1) / ".hydra" / "overrides.yaml").unlink()
    assert add(monkeypatch, "add", base / "outputs" / "runs") == 1
    shown = capsys.readouterr().out
    assert "another configuration" in shown
    assert "nobody can repeat this run" in shown
    [path] = (base / "outputs" / "measured").glob("*.json")
    other = path.with_name("0123456789ab.json")
    path.rename(other)
    with pytest.raises(UserError, match="belongs to another run or setting"):
        stored_measurement(other, Compositions())


def test_a_measurement_that_no_cell_asks_for_is_refused_and_named(place, monkeypatch, capsys):
    base, table = place
    add(monkeypatch, "add", base / "outputs" / "measured")
    other = replace(table.cells["Softmax", "Width"], measure={"_target_": "subquad.results.measures.parameters"})
    monkeypatch.setattr(store, "_measured_cells", lambda: [other])
    assert add(monkeypatch, "check") == 1
    assert "no cell of a table is measured like that" in capsys.readouterr().out
    assert add(monkeypatch, "add", base / "outputs" / "measured", "again=true") == 1
    assert "no cell of a table asks for" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task": "../../evil"}, "its task is ../../evil, by its overrides digits"),
        ({"attention": "dba"}, "its attention is dba, by its overrides softmax"),
        ({"scale": "laptop"}, "its scale is laptop, by its overrides paper"),
        ({"protocol": "clean"}, "its protocol is clean, by its overrides paper"),
        ({"metrics": {}}, "it has no test/accuracy"),
        ({"commit": "abc123+changes"}, "nobody can look up its source abc123+changes"),
    ],
)
@pytest.mark.slow
def test_a_line_that_contradicts_its_overrides_is_outdated(place, change, reason):
    kept = replace(stored_run(folder(0), Compositions()), **change)
    [problem] = Store({kept.name: kept}).outdated(Compositions())
    assert reason in problem.message


@pytest.mark.slow
def test_seeds_with_different_data_are_named(place):
    one, other = (stored_run(folder(seed), Compositions()) for seed in (0, 1))
    other = replace(other, data_fingerprint="another release")
    [problem] = Store({one.name: one, other.name: other}).outdated(Compositions())
    assert problem.path.endswith(other.name)
    assert "another seed has other data" in problem.message


@pytest.mark.slow
def test_a_line_of_synthetic_data_is_outdated(place):
    words = [*OVERRIDES, "data=synthetic"]
    name = RunIndex().spec(words, 0).folder.name
    kept = replace(stored_run(folder(0), Compositions()), overrides=words, fingerprint=name.removesuffix("-s0"))
    [problem] = Store({name: kept}).outdated(Compositions())
    assert "its data are synthetic" in problem.message


@pytest.mark.parametrize("content", [b"nope", b"[]", b"\xff", b'{"commit": "abc", "settings": {}}'])
def test_a_file_that_is_no_benchmark_is_refused(place, monkeypatch, capsys, content):
    base, _ = place
    monkeypatch.setattr(benches, "BENCHES", base / "store" / "bench")
    (base / "results.json").write_bytes(content)
    assert add(monkeypatch, "add", base / "results.json") == 1
    assert "results.json is not the results.json of a benchmark" in capsys.readouterr().out
    assert not benches.BENCHES.exists()


def test_a_benchmark_replaces_that_of_its_device_only(place, monkeypatch):
    base, _ = place
    monkeypatch.setattr(benches, "BENCHES", base / "store" / "bench")
    facts = {"versions": {"torch": "2"}, "commit": "abc", "results": []}
    for number, gpu in enumerate((None, "A 100", "A 100")):
        bench = {"settings": {"lengths": [number], "rounds": 1}, "machine": {"cpu": "CPU (R)", "gpu": gpu}, **facts}
        (base / "results.json").write_text(json.dumps(bench))
        assert add(monkeypatch, "add", base / "results.json") == 0
    several = {"lengths": [3], "rounds": 1, "dims": [64, 128]}
    (base / "results.json").write_text(json.dumps({**bench, "settings": several}))
    assert add(monkeypatch, "add", base / "results.json") == 1
    kept = benches.read_benches()
    assert [(benches.bench_device(bench), bench["settings"]["lengths"]) for bench in kept] == [
        ("CPU (R)", [0]), ("A 100", [2]),
    ]  # fmt: skip
    assert {path.name for path in benches.BENCHES.iterdir()} == {"cpu-r.json", "a-100.json"}


def test_nothing_kept_is_a_problem(place, monkeypatch, capsys):
    assert add(monkeypatch, "check") == 1
    assert "holds no result" in capsys.readouterr().out


@pytest.mark.slow
def test_outdated_and_damaged_lines_are_named_and_fill_no_cell(place, monkeypatch, capsys):
    base, _ = place
    add(monkeypatch, "add", base / "outputs")
    path = base / "store" / "runs" / "digits.jsonl"
    lines = path.read_text().splitlines()
    old = json.loads(lines[0]) | {"overrides": [*OVERRIDES, "backbone.dim=8"]}
    unknown = json.dumps({key: value for key, value in old.items() if key != "overrides"})
    no_number = lines[0].replace("0.89", "NaN")
    written = [json.dumps(old), lines[1], '{"seed": 1}', unknown, "", no_number, lines[1]]
    path.write_bytes("\n".join(written).encode() + b"\n\xb6")
    (path.parent / "folder.jsonl").mkdir()
    assert add(monkeypatch, "check") == 1
    shown = capsys.readouterr().out
    assert "backbone.dim=8: its overrides compose to another configuration today" in shown
    assert f"{path}, line 3" in shown
    assert f"{path}, line 4: overrides: Field required" in shown
    assert f"{path}, line 5: Invalid JSON" in shown
    assert f"{path}, line 6: metrics.test/accuracy: Input should be a finite number" in shown
    assert f"{path}, line 7: {folder(json.loads(lines[1])['seed']).name} is kept twice; mend or remove" in shown
    assert f"{path}, line 8" in shown
    assert f"{path.parent / 'folder.jsonl'}: it cannot be read (Is a directory)" in shown
    with pytest.raises(UserError, match=r"digits\.jsonl, line 3"):
        gather_project()
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(base / "elsewhere"))
    content = gather(["one/1"])
    assert [problem.path for problem in content.outdated] == [f"runs/digits.jsonl: {folder(old['seed']).name}"]
    page = (write_site(base / "pages", content).parent / "runs.html").read_text()
    assert "Outdated results of the project" in page
    assert "line 3" in page


@pytest.mark.parametrize("edit", [("0.89", "0.9"), ('"checksum": "', '"checksum": "0'), ('"steps": 4', '"steps": 5')])
def test_a_number_edited_by_hand_is_noticed_and_fills_no_cell(place, monkeypatch, capsys, edit):
    base, _ = place
    add(monkeypatch, "add", base / "outputs")
    path = base / "store" / "runs" / "digits.jsonl"
    kept = path.read_text()
    assert edit[0] in kept
    path.write_text(kept.replace(*edit))
    assert add(monkeypatch, "check") == 1
    assert "has values that do not fit its checksum; mend or remove this line" in capsys.readouterr().out
    assert len(Store.read().runs) == (0 if edit[0] in kept.splitlines()[1] else 1)
