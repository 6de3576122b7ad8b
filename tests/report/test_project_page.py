"""How the project's results are counted: trained cells, costs, settings and own tables apart, each mechanism once."""

from dataclasses import replace

from runs import FACTS

from subquad.records import Record
from subquad.report.project_page import counts, headline, results_page
from subquad.results.model import PROJECT, CellResult, CellResults, Run, TableResults
from subquad.results.statistics import summarise
from subquad.results.table import load
from subquad.results.verdict import Verdict, cell_verdict

PAPER = """
title: t
source: s
seeds: 5
metric: {name: test/accuracy, scale_by: 100}
columns:
  Softmax: [attention=softmax]
  Softmax (published): {overrides: [attention=softmax], from_prior_work: true}
  DBA: [attention=dba]
  Width: {measure: {_target_: subquad.results.measures.setting, key: backbone.dim}, metric: {name: value, scale_by: 1}}
  Speed:
    measure: {_target_: subquad.results.measures.relative_speed, reference: [attention=softmax]}
    metric: {name: value, scale_by: 1}
rows: {Vowels: [task=uea/japanese_vowels], Libras: [task=uea/libras]}
printed: {Vowels: 99.5±0.3 99.4 99.6 64 2.0, Libras: "85.0 84.0 85.5 64 ?"}
"""
OWN = """
title: own
source: s
seeds: 1
metric: {name: test/accuracy, scale_by: 100}
columns: {Accuracy: [task=arena/copying]}
rows: {Softmax: [attention=softmax], DBA: [attention=dba]}
"""


def made(tmp_path, name, text, values):
    """The results of the project: `values` by row and column, by seed."""
    (tmp_path / "t.yaml").write_text(text)
    table = load(tmp_path / "t.yaml", name)
    cells = {}
    for place, cell in table.cells.items():
        found = values.get(place, {})
        key = " ".join(cell.overrides)
        runs = [
            Run(key=f"{key} {seed}", record=replace(Record(**FACTS), seed=seed), command="", project=True)
            for seed in (found if cell.trained else ())
        ]
        result = CellResult(
            scope=PROJECT, verdict=cell_verdict(cell, found, full=True), values=found, runs=runs,
            text=summarise(found).text(1) if found else "",
        )  # fmt: skip
        cells[place] = CellResults(cell=cell, anchor="", command="", results=(result,))
    return TableResults(table=table, command="", cells=cells)


def tables(tmp_path):
    five, few = dict.fromkeys(range(5), 99.5), {0: 99.0, 1: 99.0}
    values = {("Vowels", "Softmax"): five, ("Vowels", "Softmax (published)"): five, ("Vowels", "DBA"): few}
    values |= {("Vowels", "Width"): {0: 64.0}, ("Libras", "Width"): {0: 32.0}, ("Vowels", "Speed"): {0: 2.0}}
    paper = made(tmp_path, "paper/1", PAPER, values)
    rates = made(tmp_path, "arena_rates", OWN.replace("test/", "val/"), {("DBA", "Accuracy"): {0: 90.0}})
    return [paper, made(tmp_path, "arena", OWN, {("DBA", "Accuracy"): {0: 90.0}}), rates]


def test_each_kind_is_counted_apart_and_settings_are_no_reproduction(tmp_path):
    found = tables(tmp_path)
    text = " ".join(counts(found).split())
    assert "Of 6 cells" in text
    assert "3 have been trained" in text
    assert "(by 2 settings" in text
    assert "2 of them with 5 seeds" in text
    assert "1 of 2 costs" in text
    assert "1 of 2 printed settings" in text
    assert "1 trained and 0 measured cells of the arena, and 1 validation score of" in text
    page = results_page(found, [], [])
    lines = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in page.splitlines() if line.startswith("| ")}
    stated = next(cells for name, cells in lines.items() if name.startswith("Settings"))
    assert [text.strip() for text in stated] == ["2", "2", "1 as printed, 1 worse"]
    assert found[0].cells["Vowels", "Width"].verdict is Verdict.AS_PRINTED


def test_a_mechanism_that_is_printed_twice_stands_once_in_a_row(tmp_path):
    row = headline(tables(tmp_path)).splitlines()[-1]
    assert row == (
        "| paper/1 | Vowels | Softmax 99.5 ± 0.0 (99.5±0.3, quoted 99.4) · DBA 99.0 ± 0.0, 2 of 5 seeds (99.6) |"
    )


def test_one_run_is_not_said_to_be_several(tmp_path):
    own = results_page(tables(tmp_path)[1:], [], [])
    assert "1 run took" in own
    assert "1 runs" not in own
