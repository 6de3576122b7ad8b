"""Cells whose data are not here say so, and others that are empty do not."""

import pytest

from subquad.report.terminal import NEEDS_DATA, show_table
from subquad.results import cells
from subquad.results.cells import Runs, load_table
from subquad.results.missing_data import lacking
from subquad.results.verdict import Verdict, cell_verdict


@pytest.fixture
def choices(tmp_path):
    return (f"paths.data={tmp_path}",)


def test_empty_cells_without_data_say_what_they_need(choices, monkeypatch):
    table = load_table("primal_dual/9").select(["BasicMotions", "Cricket", "Epilepsy"], ["Softmax", "Attention-BN"])
    asked = []
    monkeypatch.setattr(cells, "missing_data", lambda data, ask=cells.missing_data: asked.append(data) or ask(data))
    found = lacking(table, {("Epilepsy", "Softmax"): {0: 90.0}}, Runs(choices))
    assert set(found) == {("Cricket", "Softmax"), ("Cricket", "Attention-BN"), ("Epilepsy", "Attention-BN")}
    assert "python scripts/prepare.py task=uea/cricket" in found["Cricket", "Softmax"]
    assert len(asked) == 3  # one for each set of data, not for each attention
    assert lacking(table, {}, Runs([*choices, "data=synthetic"])) == {}


def test_a_mean_needs_what_its_parts_need(choices):
    table = load_table("dba/2").select(["DBA"])
    found = lacking(table, {}, Runs(choices))
    assert {column for _, column in found} == {"Text", "Retrieval", "Image", "Avg."}  # the others are made here
    assert found["DBA", "Avg."] == found["DBA", "Text"]


def test_a_run_that_starts_from_another_needs_its_data_too(choices):
    table = load_table("linformer/2")
    [cell] = [cell for cell in table if cell.chained][:1]
    sub = table.select([cell.row], [cell.column])
    [reason] = lacking(sub, {}, Runs([*choices, f"data.root={choices[0].partition('=')[2]}"])).values()
    assert reason


def test_the_verdict_and_the_mark(choices, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    table = load_table("primal_dual/9").select(["BasicMotions", "Cricket"], ["Softmax"])
    motions, cricket = table.cells["BasicMotions", "Softmax"], table.cells["Cricket", "Softmax"]
    assert cell_verdict(cricket, {}, True, needs_data=True) is Verdict.NEEDS_DATA
    assert cell_verdict(motions, {}, True) is Verdict.NOT_RUN
    assert cell_verdict(motions, {0: 1.0}, False, needs_data=True) is Verdict.OTHER_SCALE
    show_table(table, {}, True, lacking={("Cricket", "Softmax"): "Cricket [is] missing."})
    shown = capsys.readouterr().out
    assert f"{NEEDS_DATA} ({cricket.printed.text})" in shown
    assert f"- ({motions.printed.text})" in shown
    assert f"{NEEDS_DATA} needs data that are not on this machine:\n  Cricket [is] missing." in shown
    show_table(table, {}, True)
    assert NEEDS_DATA not in capsys.readouterr().out
