"""Tables as text for papers and pages: complete, escaped, in one piece."""

import re
from dataclasses import replace

import pytest
from made_pages import build
from made_results import results_with

from subquad.config.choices import options
from subquad.report.markdown_latex import _LETTERS, _TEX, latex, markdown
from subquad.results.model import PROJECT, Scope
from subquad.results.side_lines import side_lines
from subquad.results.table import load
from subquad.results.verdict import Verdict


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    return build(tmp_path_factory.getbasetemp() / "made_pages").content.tables[0]


def cells(line):
    """The cells of a line of Markdown."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


@pytest.mark.slow
def test_markdown_has_every_cell_in_its_place(part):
    text = markdown(part)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, rule, *body = (cells(line) for line in lines)
    assert head == ["", "Accuracy", "Width", "Name"]
    assert rule == ["---", "---:", "---:", "---:"]
    assert [len(row) for row in body] == [4] * 7
    rows = {row[0]: row for row in body}
    assert rows["Softmax"][1] == "89.9 ± 1.1 (90.0±1.0), reproduced"
    assert rows["DBA"][1] == "50.0 (70.0±0.1), too few seeds"
    assert body[-1] == ["without a model: majority class", "10.1", "", ""]
    assert rows["Broken"] == ["Broken", "— (50.0)", "— (1)", "— (x)"]
    assert rows[r'\<i\>R&D\</i\> 50%\_x, "\#1"'][3] == "— (x y)"
    assert text.startswith("**Two rows & \\<more\\>**")
    assert "- DBA: Doubtful: \\<b\\> is no tag \\| or so." in text
    assert "ours are means ± standard deviations over the seeds that have run, of 2;" in text


def test_missing_seeds_are_said_without_a_printed_value_too(part):
    own = part.cells["DBA", "Accuracy"]
    bare = replace(own, cell=replace(own.cell, printed=None))
    assert "| 50.0, too few seeds |" in markdown(replace(part, cells={**part.cells, own.cell.place: bare}))


def test_another_scale_says_that_it_is_no_reproduction(part):
    text = markdown(part, Scope("laptop"))
    assert "(scale laptop: no reproduction)" in text
    assert "33.3 (50.0), other scale or protocol" in text
    assert "89.9" not in text


def test_rows_and_columns_of_a_scope_of_the_project_are_those_with_a_value_in_it(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text("{title: t, source: s, seeds: 1, columns: {A: [], B: []}, rows: {x: [a=1], y: [a=2], z: [a=3]}}")
    small = replace(PROJECT, scale="laptop")
    full, other = (
        results_with(load(path, "t"), {place: {0: value}}, scope)
        for place, value, scope in ((("x", "A"), 1.0, PROJECT), (("y", "B"), 2.0, small))
    )
    both = {
        place: replace(cell, results=(*cell.results, *other.cells[place].results)) for place, cell in full.cells.items()
    }
    lines = markdown(replace(full, cells=both), small).splitlines()[2:5]
    assert [cells(line) for line in lines] == [["", "B"], ["---", "---:"], ["y", "2.00"]]


def test_latex_is_escaped_and_closed(part):
    text = latex(part)
    assert r"89.9 $\pm$ 1.1$^{\mathrm{r}}$ {\footnotesize(90.0$\pm$1.0)} &" in text
    assert r"Gone & -- {\footnotesize(40.0)} & -- {\footnotesize(1)} & -- {\footnotesize(x)} \\" in text
    assert r"\textless{}i\textgreater{}R\&D\textless{}/i\textgreater{} 50\%\_x, ''\#1'' &" in text
    assert "r: reproduced; " in text
    assert "i: too few seeds" in text
    check(text, columns=4, rows=8)


def check(text, columns, rows):
    """Structure of a LaTeX table: pairs of braces and environments, as many cells as columns, rules of booktabs."""
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")
    ]  # fmt: skip
    plain = re.sub(r"\\[{}&%$#_\\]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == rows
    assert {len(re.split(r"(?<!\\)&", line)) for line in lines} == {columns}
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[%#]", body)


@pytest.mark.slow
def test_all_tables_of_the_papers_can_be_written(tmp_path, monkeypatch):
    from subquad.results.collect import gather

    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path))
    for part in gather(options("table"), [f"paths.outputs={tmp_path}"]).tables:
        lines = [line for line in markdown(part).splitlines() if line.startswith("|")]
        [columns] = {len(cells(line)) for line in lines}
        check(latex(part), columns, len(lines) - 1)
        beside = side_lines(part, lambda _: None)
        assert columns == len(part.table.columns) + 1 + len(beside.side)
        assert len(lines) == len(part.table.rows) + 2 + len(beside.foot)
        strange = {letter for letter in latex(part) if ord(letter) > 127}
        assert not strange, f"LaTeX may not know {strange}; add them to formats._TEX"


def test_every_verdict_has_a_letter_and_every_special_character_an_escape():
    assert set(_LETTERS) == set(Verdict)
    assert set("\\{}&%$#_~^<>|") <= set(_TEX)
