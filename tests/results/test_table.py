"""The format of a table: which words, measures, means and printed values its cells get, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from subquad.results.cells import select
from subquad.results.footnotes import not_run, notes
from subquad.results.published_value import Printed
from subquad.results.table import Table, load
from subquad.utils.errors import UserError

TABLE = """
title: Three rows
source: a paper, Table 1
seeds: 5
overrides: [recipe=luna]
metric: {name: test/accuracy, label: accuracy, scale_by: 100, unit: "%"}
columns:
  Text: [task=lra/text]
  Image: {overrides: [task=lra/image], note: In grey.}
  Long: {overrides: [task=lra/listops], eval_data: {multiply: 4}}
  Avg.: {mean: [Text, Image]}
  Width:
    metric: {name: value, scale_by: 1, unit: "", better: equal}
    measure: {_target_: subquad.results.measures.setting, key: backbone.dim}
  Hidden: {overrides: [task=lra/retrieval], hidden: true}
  With hidden: {mean: [Text, Hidden]}
rows:
  Softmax: {overrides: [attention=softmax], from_prior_work: true}
  64: [attention=dba, attention.d_p=64]
  Tuned: {overrides: [attention=dba], init_from: [task=mlm/text, attention=dba], metric: {better: lower}}
  BAN: {unavailable: None of ours., note: Of 2018.}
printed:
  Softmax: 64.27 42.44±0.10 - 53.36 256 60.00
  64: 66.17 46.98 ? 56.58 O(n_d) 61.00
cells:
  "Softmax / Image": {overrides: [attention.fused=false], note: Doubtful.}
  "* / Width": {measure: {key: backbone.layers}}
  "64 / Width": {measure: {key: backbone.ffn}, from_prior_work: true}
  "BAN / Text": {unavailable: Not even this.}
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Table]:
    def loaded(text: str) -> Table:
        path = tmp_path / "1.yaml"
        path.write_text(text)
        return load(path, "paper/1")

    return loaded


@pytest.fixture
def table(written) -> Table:
    return written(TABLE)


def test_the_words_are_those_of_the_table_the_column_the_row_and_the_cell(table):
    assert table.cells["Softmax", "Image"].overrides == (
        "recipe=luna",
        "task=lra/image",
        "attention=softmax",
        "attention.fused=false",
    )
    assert table.cells["64", "Text"].overrides == ("recipe=luna", "task=lra/text", "attention=dba", "attention.d_p=64")


def test_names_are_text_and_cells_stand_row_by_row(table):
    assert [row.name for row in table.rows] == ["Softmax", "64", "Tuned", "BAN"]
    assert [column.name for column in table.columns] == ["Text", "Image", "Long", "Avg.", "Width", "With hidden"]
    assert [(cell.row, cell.column) for cell in table][:3] == [
        ("Softmax", "Text"),
        ("Softmax", "Image"),
        ("Softmax", "Long"),
    ]
    assert (table.name, table.title, table.source, table.seeds) == ("paper/1", "Three rows", "a paper, Table 1", 5)


def test_the_metric_is_merged_of_table_column_and_row(table):
    metric = table.cells["Tuned", "Text"].metric
    assert (metric.name, metric.label, metric.scale_by, metric.unit, metric.better) == (
        "test/accuracy", "accuracy", 100, "%", "lower",
    )  # fmt: skip
    metric = table.cells["64", "Width"].metric
    assert (metric.name, metric.scale_by, metric.better) == ("value", 1, "equal")
    assert table.cells["64", "Text"].metric.better == "higher"


def test_values_have_the_digits_of_the_printed_one_counts_without_one_none_and_others_two(table):
    # 42.44±0.10, 256, O(n_d) of a counted metric, and nothing
    shown = [("Softmax", "Image"), ("Softmax", "Width"), ("64", "Width"), ("64", "Long")]
    assert [table.cells[place].digits for place in shown] == [2, 0, 0, 2]


def test_a_measured_cell_takes_no_unit_of_a_metric_of_records(written):
    text = TABLE.replace('scale_by: 1, unit: "", better: equal', "better: equal")
    metric = written(text).cells["64", "Width"].metric
    assert (metric.name, metric.label, metric.scale_by, metric.unit, metric.better) == ("value", "", 1, "", "equal")
    metric = written(text.replace("{name: test/accuracy, ", "{")).cells["64", "Width"].metric
    assert (metric.label, metric.scale_by, metric.unit) == ("accuracy", 100, "%")


def test_a_cell_is_one_of_trained_chained_measured_mean_and_missing(table):
    def kind(row: str, column: str) -> tuple[bool, bool, bool, bool, bool]:
        cell = table.cells[row, column]
        return cell.trained, cell.chained, bool(cell.measure), bool(cell.mean), bool(cell.unavailable)

    assert kind("64", "Text") == (True, False, False, False, False)
    assert kind("64", "Long") == (True, True, False, False, False)
    assert kind("Tuned", "Text") == (True, True, False, False, False)
    assert kind("64", "Width") == (False, False, True, False, False)
    assert kind("64", "Avg.") == (False, False, False, True, False)
    assert kind("BAN", "Text") == (False, False, False, False, True)
    assert kind("BAN", "Long") == (False, False, False, False, True)


def test_a_chained_cell_names_what_it_starts_from_and_what_it_is_evaluated_on(table):
    assert table.cells["Tuned", "Long"].init_from == ("task=mlm/text", "attention=dba")
    assert table.cells["Tuned", "Long"].eval_data == {"multiply": 4}
    assert table.cells["64", "Text"].init_from == ()
    assert table.cells["64", "Text"].eval_data == {}


def test_a_measure_is_merged_and_the_cell_wins(table):
    setting = "subquad.results.measures.setting"
    assert table.cells["Softmax", "Width"].measure == {"_target_": setting, "key": "backbone.layers"}
    assert table.cells["64", "Width"].measure == {"_target_": setting, "key": "backbone.ffn"}


def test_a_column_may_have_fewer_runs_than_the_table(written):
    text = TABLE.replace(
        "  Hidden: {overrides: [task=lra/retrieval],", "  Hidden: {overrides: [task=lra/retrieval], seeds: 4,"
    )
    table = written(text.replace('"Softmax / Image": {', '"Softmax / Image": {seeds: 3, '))
    counts = {place: cell.seeds for place, cell in table.cells.items() if cell.seeds != 5}
    assert counts == {("Softmax", "Image"): 3} | {(row.name, "Hidden"): 4 for row in table.rows}
    assert table.counts == "3 or 4 or 5"


def test_a_mean_names_its_cells(table):
    assert table.cells["64", "Avg."].mean == (("64", "Text"), ("64", "Image"))
    assert table.cells["64", "With hidden"].mean == (("64", "Text"), ("64", "Hidden"))


def test_a_hidden_column_is_trained_and_not_shown(table):
    assert table.cells["64", "Hidden"].trained
    assert "Hidden" not in [column.name for column in table.columns]
    assert table.cells["64", "Hidden"].printed is None


def test_printed_values_stand_in_the_order_of_the_shown_columns(table):
    assert table.cells["Softmax", "Image"].printed == Printed("42.44±0.10", 42.44, 0.10, 2)
    assert table.cells["Softmax", "With hidden"].printed == Printed("60.00", 60.0, None, 2)
    assert table.cells["64", "Width"].printed == Printed("O(n d)")


def test_a_dash_is_an_empty_cell_and_a_question_mark_one_that_was_not_read(table):
    empty, unread, unprinted = (table.cells[row, "Long"] for row in ("Softmax", "64", "Tuned"))
    assert empty.printed is unread.printed is unprinted.printed is None
    assert empty.unavailable == "The paper leaves this cell empty."
    assert unread.unavailable == unprinted.unavailable == ""
    assert not_run([table]) == 'Not run, because the table prints "-" there ("?" would run it): Softmax / Long.'
    assert "paper/1 Softmax / Long, paper/1 Softmax / Long." in not_run([table, table])
    assert not_run([table.select(["64"])]) == ""


def test_reasons_and_notes_of_a_single_cell_come_before_those_of_its_lines(table):
    assert table.cells["BAN", "Text"].unavailable == "Not even this."
    assert table.cells["BAN", "Image"].unavailable == "None of ours."
    assert table.cells["BAN", "Image"].notes == ("Of 2018.", "In grey.")
    assert table.cells["Softmax", "Image"].notes == ("In grey.", "Doubtful.")


def test_quoted_is_a_row_or_a_cell(table):
    assert [cell.from_prior_work for cell in table if cell.column == "Width"] == [True, True, False, False]
    assert not table.cells["64", "Text"].from_prior_work


def test_a_row_of_means_averages_the_plain_rows(written):
    table = written("""
title: t
source: s
seeds: 1
columns: {A: [task=a]}
rows: {x: [], y: [], Average: {mean: true}}
printed: {x: "1.0", y: "2.0", Average: "1.5"}
""")
    assert table.cells["Average", "A"].mean == (("x", "A"), ("y", "A"))


def test_select_keeps_what_is_named_and_means_whose_parts_are_there(table):
    some = table.select(["64"], ["Text", "Avg."])
    assert set(some.cells) == {("64", "Text")}
    assert [column.name for column in some.columns] == ["Text"]
    assert set(table.select(["64"], ["Text", "Image", "Avg."]).cells) == {
        ("64", "Text"),
        ("64", "Image"),
        ("64", "Avg."),
    }
    assert table.select().cells == table.cells
    assert [row.name for row in table.select(["BAN"]).rows] == ["BAN"]


def test_select_keeps_the_hidden_parts_of_a_mean(table):
    some = table.select(["64"], ["Text", "With hidden"])
    assert set(some.cells) == {("64", "Text"), ("64", "Hidden"), ("64", "With hidden")}
    assert [column.name for column in some.columns] == ["Text", "With hidden"]
    assert set(table.select(["64"], ["Text"]).cells) == {("64", "Text")}


def test_select_refuses_unknown_names(table):
    with pytest.raises(UserError, match="table paper/1 has no row Sofmax; its rows are Softmax, 64, Tuned, BAN"):
        table.select(["Sofmax"])
    with pytest.raises(UserError, match="table paper/1 has no column Hidden"):
        table.select([], ["Hidden"])


def test_patterns_select_on_their_own_axis_first(table):
    assert select([table], ["So*", "*4"], ["T*"]) == [table.select(["Softmax", "64"], ["Text"])]
    assert select([table], ["Im*"], []) == [table.select([], ["Image"])]
    assert select([table], ["sOFTmax"], ["image"]) == [table.select(["Softmax"], ["Image"])]
    with pytest.raises(UserError, match=r"has no row Q\*"):
        select([table], ["Q*"], [])


def changed(*path: str, to: object) -> str:
    """The table with another value at a place; None takes the place out."""
    node = OmegaConf.to_container(OmegaConf.create(TABLE))
    *above, last = path
    inner: dict = node  # type: ignore[assignment, type-arg]
    for key in above:
        inner = inner[key]
    if to is None:
        del inner[last]
    else:
        inner[last] = to
    return OmegaConf.to_yaml(OmegaConf.create(node))


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("colums",), {}, "there is no key colums; the keys are cells, charts, claims"),
        (("printed", "Sofmax"), "1 2 3 4 5 6", "it prints a row Sofmax that is not among its rows"),
        (("printed", "Softmax"), "1 2 3", "row Softmax prints 3 cells and has 6 columns"),
        (("printed", "Softmax"), 64.27, "row Softmax prints the number 64.27; put it in quotes"),
        (("cells", "Softmax / Txt"), {"note": "x"}, 'there is no cell "Softmax / Txt"; write "row / column"'),
        (("cells", "Softmax / Text"), {"metric": {}}, 'cell "Softmax / Text" has no key metric'),
        (("rows", "BAN", "unavailble"), "x", '"BAN" has no key unavailble; did you mean unavailable?'),
        (("columns", "Width", "name"), "x", '"Width" has no key name; choose from eval_data,'),
        (("columns", "Width", "measure"), {"key": "a"}, "measure of Softmax / Width has no _target_"),
        (("rows", "BAN", "hidden"), True, "row BAN is hidden, and only columns may be"),
        (("columns", "Avg.", "mean"), ["Text", "Imag"], "there is no Imag to take a mean of; it averages Text, Image"),
        (("columns", "Avg.", "mean"), ["With hidden"], "there is no With hidden to take a mean of"),
        (("metric", "better"), "more", "better is more; choose higher, lower, equal"),
        (("overrides",), ["scale=smoke"], "scale=smoke belongs on the command line"),
        (("metric", "scale_by"), "x", "scale_by is x; it takes a number"),
        (("metric", "nme"), "x", "metric has no key nme; did you mean name?"),
        (("rows", "Tuned", "metric", "units"), "x", "metric has no key units; did you mean unit?"),
        (("seeds",), 0, "trained cells need seeds of at least 1"),
        (("seeds",), "x", "is not as the format asks for"),
        (("rows", "BAN"), "attention=softmax", "is not as the format asks for"),
        (("title",), None, "is not as the format asks for"),
        (("rows",), None, "is not as the format asks for"),
    ],
)
def test_a_table_that_is_not_as_the_format_says_is_refused_by_its_name(written, path, value, sentence):
    with pytest.raises(UserError) as caught:
        written(changed(*path, to=value))
    assert str(caught.value).startswith("Table paper/1")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["title: [", "title: ${nothing}", "a: 1\na: 2", "-1"])
def test_a_file_that_is_no_yaml_is_refused_by_its_path(written, tmp_path, text):
    with pytest.raises(UserError, match=f"{tmp_path}/1.yaml cannot be read"):
        written(text)
    (tmp_path / "2.yaml").write_bytes(b"\x80")
    with pytest.raises(UserError, match=f"{tmp_path}/2.yaml cannot be read"):
        load(tmp_path / "2.yaml", "paper/2")


def test_counted_tables_need_no_seeds(written):
    table = written("""
title: t
source: s
columns: {A: {measure: {_target_: x}}}
rows: {x: []}
""")
    assert table.seeds == 0


def test_a_remark_is_made_once_of_all_that_it_is_about(written):
    text = TABLE.replace('"* / Width": {', '"* / Long": {note: Twice.}\n  "* / Width": {note: Twice., ')
    said = {remark: about for about, remark in notes(written(text))}
    assert said["Twice."] == "Long, Width"
    assert said["Of 2018."] == "BAN"
    assert said["Doubtful."] == "Softmax / Image"
    assert said["In grey."] == "Image"
    assert "None of ours." not in said  # of cells that are not printed
    part = '"64 / Text": {note: Part.}\n  "64 / Image": {note: Part.}\n  "Tuned / Text": {note: Part.}\n'
    said = {remark: about for about, remark in notes(written(TABLE + f"  {part}"))}
    assert said["Part."] == "64 / Text, Image; Tuned / Text"  # neither whole rows nor all cells of both columns
    everywhere = notes(written(TABLE.replace("cells:\n", 'cells:\n  "*": {note: All over.}\n')))
    assert ("all cells", "All over.") in everywhere
