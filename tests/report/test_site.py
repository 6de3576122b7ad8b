"""The pages say what the runs say, in well-formed HTML whose links lead somewhere; odd names stay words."""

import dataclasses
import html
import json
import os
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from made_pages import ODD, build

from subquad.report.html.site import MANIFEST, _Site, write_site
from subquad.report.verdict_style import MARKS
from subquad.results.verdict import Verdict

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Elements of a page; raises where one is not closed in its place."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.sources, self.elements = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), f"{tag} has an attribute twice: {attrs}"
        self.elements.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)
        if values.get("id"):
            self.ids.append(values["id"])
        if values.get("href"):
            self.links.append(values["href"])
        if values.get("src"):
            self.sources.append(values["src"])

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag, (tag, self.getpos())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.getbasetemp() / "made_pages")


@pytest.fixture(scope="module")
def pages(made):
    return {name: Page(text) for name, text in made.all().items() if not name.startswith("bench/")}


def words(text):
    """The text of markup, on one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def card(made, row, column="Accuracy"):
    """The text of the box of a cell."""
    part = made.content.tables[0].cells[row, column]
    return words(made.html("tables/one/1.html").partition(f'<article id="{part.anchor}"')[2].partition("</article>")[0])


@pytest.mark.slow
def test_pages_are_well_formed_and_their_ids_are_their_own(pages):
    assert {"index.html", "runs.html", "costs.html", "tables/one/1.html", "tables/other/7.html"} <= pages.keys()
    assert {
        "explorer.html",
        "mechanisms.html",
        "mechanisms/dba.html",
        "datasets.html",
        "datasets/digits.html",
    } <= pages.keys()
    assert len(pages) == 5 + 6 + 3 + 5 + 1  # tables and lists, runs, explorer and lists, mechanisms, data sets
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name


@pytest.mark.slow
def test_every_link_and_anchor_leads_somewhere(made, pages):
    checked = 0
    for name, page in pages.items():
        for link in [*page.links, *page.sources]:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("https", "data")
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path))) if parts.path else name
            assert (made.pages / target).is_file(), (name, link)
            if parts.fragment and "=" not in parts.fragment:  # filters
                assert parts.fragment in pages[target].ids, (name, link)
            checked += 1
    assert checked > 100


def test_pages_need_no_network(made, pages):
    for path in [*(made.pages / "assets").glob("*.css"), *(made.pages / "assets").glob("*.js")]:
        assert not re.search(r"@import|https?://(?!www.w3.org/2000/svg)|\bfetch\(", path.read_text()), path
    for name, page in pages.items():
        for tag, attributes in page.elements:
            fetched = attributes.get("src") or "" if tag != "link" else attributes["href"]
            assert not fetched.startswith(("http", "//")), name
        assert not re.search(r"@import|url\(", made.html(name)), name


def test_only_the_scripts_of_the_pages_themselves_may_run(made, pages):
    for name in pages:
        text = made.html(name)
        [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
        assert policy.startswith("default-src 'none'; ")
        assert re.search(r"script-src ([^;]*);", policy)[1] == "'self' file:"  # no text of a page is a program
        for tag, attributes in pages[name].elements:
            if tag == "script" and attributes.get("type") != "application/json":
                assert re.fullmatch(r"(\.\./)*assets/[\w./]+\.js", attributes["src"]), name
                assert (made.pages / name).parent.joinpath(attributes["src"]).is_file(), name
        assert not re.search(r"<[^>]* on\w+=|javascript:", text), name


def test_numbers_are_those_of_the_records(made):
    softmax = card(made, "Softmax")
    assert "Printed: 90.0 ± 1.0 %" in softmax
    assert "Ours: 89.9 ± 1.1, 95 % interval 79.7 to 100.1, 2 seeds ✓ reproduced" in softmax
    assert "Runs: seed 0 89.1, seed 1 90.7" in softmax
    assert "Baselines: majority class 10.1" in softmax
    assert "Scale smoke, synthetic data: 12.3" in softmax
    assert "◇ other scale or protocol" in softmax
    dba = card(made, "DBA")
    assert "quoted there from elsewhere" in dba
    assert "Ours: 50.0, 1 seed … too few seeds" in dba
    assert "Doubtful: <b> is no tag | or so." in dba
    assert "python scripts/reproduce.py table=one/1 'rows=[DBA]' 'columns=[Accuracy]'" in dba
    assert "Cannot be filled: Nobody has it & never will." in card(made, "Gone")


def test_a_missing_cell_is_a_dash(made):
    assert "Ours: — not run" in card(made, "Broken")
    grid = made.html("tables/one/1.html").partition('class="grid')[2].partition("</table>")[0]
    rows = {words(row).split(" ")[0]: words(row) for row in re.split("<tr[^>]*>", grid)[2:]}
    assert rows["Broken"] == "Broken — not run printed 50.0 — not run printed 1 — not run printed x"
    assert rows["Gone"].count("— not run printed") == 3
    assert rows["Gone"].count("∅") == 3
    assert rows["without"] == "without a model: majority class 10.1"


def test_a_cell_leads_to_its_runs(made, pages):
    page = pages["tables/one/1.html"]
    part = made.content.tables[0].cells["Softmax", "Accuracy"]
    assert f"#{part.anchor}" in page.links
    runs = [run for result in part.results for run in result.runs]
    assert len(runs) == 3
    for run in runs:
        assert f"../../runs/{run.key}.html" in page.links
        assert f"../../../tables/one/1.html#{part.anchor}" in pages[f"runs/{run.key}.html"].links


def test_a_page_of_a_run_says_how_it_was_made(made):
    [run] = [run for run in made.content.runs if run.record.seed == 1]
    text = words(made.html(f"runs/{run.key}.html"))
    for fact in (
        "python train.py task=digits attention=softmax 'tags=[a b]'", "test/accuracy 90.70%", "duration 1 min 15 s",
        "baseline: majority class 10.10%", "parameters 1,234,567", "cpu A <CPU>", "torch 2", "commit abc123",
        "peak memory 321 MiB (resident set)", "deep: key: - 1 - </pre>", "Fills one/1 Softmax / Accuracy",
    ):  # fmt: skip
        assert fact in text, fact
    charts = re.findall(r'application/json">(.*?)</script>', made.html(f"runs/{run.key}.html"))
    assert [[line["name"] for line in json.loads(chart)["lines"]] for chart in charts] == [
        ["train/loss", "val/loss"], ["val/accuracy"],
    ]  # fmt: skip


def test_odd_names_stay_words(made, pages):
    for name, page in pages.items():
        assert {tag for tag, _ in page.elements} & {"u", "s"} == set(), name
        assert "alert(1)</script>" not in made.html(name)
    assert ODD in words(made.html("tables/one/1.html"))
    runs = words(made.html("runs.html"))
    assert "<script>alert(1)</script> on d\"'&" in runs.partition("Your own runs")[2].partition("Failed")[0]
    assert "There is no <folder>; make it." in runs
    assert "<script>alert(1)</script> on d\"'& 77.70 % 0 paper, paper 1,234,567" in runs.partition("Your own runs")[2]
    [own] = made.content.own
    assert re.fullmatch(r"[\w./=-]+", next(link for link in pages["runs.html"].links if "mine" in link))
    assert "no cell of a table asks" in words(made.html(next(n for n in pages if "mine" in n))).lower()
    assert own.command.endswith("'attention=<script>alert(1)</script>' 'tags=[a b]'")


def test_broken_files_are_named(made):
    text = words(made.html("runs.html")).partition("Files that cannot be read")[2]
    assert str(made.folders["broken"] / "result.json") in text
    assert "garbled.json" in text
    assert "No learning curve" in text
    index = words(made.html("index.html"))
    assert "3 files cannot be read" in index
    assert "1 failed" in index
    assert "1 started and not ended" in index


def test_a_figure_says_with_what_it_was_drawn(made):
    assert 'alt="Figure dba/4: scale=laptop. 1 run is missing."' in made.html("costs.html")


def test_the_overview_counts_verdicts(made):
    text = words(made.html("index.html"))
    counted = text.partition("What is reproduced")[2].partition("Your runs")[0]
    trained, stated = counted.split("Settings and constants")
    assert "Costs of" not in counted  # none of these tables has any
    shown = [(table, part) for table in made.content.tables for part in table.shown]
    parts = [(table.kind(part), part) for table, part in shown if not part.cell.unavailable]
    assert {kind for kind, _ in parts} == {"trained", "stated"}
    for said, kind in ((trained, "trained"), (stated, "stated")):
        for verdict in Verdict:
            count = sum(part.verdict is verdict for k, part in parts if k == kind)
            assert (f" {count} {verdict.value}" in said) == (count > 0), (kind, verdict)
    assert f"{len(shown)} cells in 2 tables" in text
    assert "A <CPU>" in text.partition("Where it was measured")[2]
    assert "5 of them your own" not in text
    assert "1 of them your own" in text


def test_the_overview_begins_with_what_was_measured_here(made):
    text = words(made.html("index.html").partition("<main")[2])
    own, _, rest = text.partition("Your runs")[2].partition("All tables")
    assert rest
    assert "<script>alert(1)</script> on d\"'& 77.70% · seed 0 · paper" in own  # the newest run
    assert "not run" not in own


def test_the_overview_has_a_square_for_each_trained_cell_with_a_number(made, pages):
    squares = {a["href"]: a for tag, a in pages["index.html"].elements if tag == "a" and a.get("aria-label")}
    shown = [(t, part) for t in made.content.tables for part in t.shown if part.cell.trained]
    known = {f"tables/{t.table.name}.html#{p.anchor}": p for t, p in shown if p.decisive.text}
    assert squares.keys() == known.keys()
    softmax = squares[f"tables/one/1.html#{made.content.tables[0].cells['Softmax', 'Accuracy'].anchor}"]
    assert softmax["title"] == "one/1: Softmax / Accuracy: 89.9 ± 1.1, printed 90.0±1.0: reproduced"


def test_the_explorer_has_every_cell_with_its_number(made):
    data = json.loads(re.search(r'id="data">(.*?)</script>', made.html("explorer.html"))[1])
    coded = list(data["values"])
    rows = [[*(data["values"][key][row[i]] for i, key in enumerate(coded)), *row[len(coded) :]] for row in data["rows"]]
    assert len(rows) == sum(len(table.shown) for table in made.content.tables)
    [softmax] = [row for row in rows if row[coded.index("column")] == "Accuracy" and row[len(coded)] == "Softmax"]
    assert softmax[: len(coded)] == [
        "one/1", "one", "Accuracy", "softmax", "digits", "accuracy %", "trained", "reproduced", "paper", "A <CPU>"
    ]  # fmt: skip
    assert softmax[len(coded) + 2 :] == ["89.9", "1.1", "90.0±1.0", "2"]


def test_a_mechanism_and_a_data_set_lead_to_their_cells_and_back(made, pages):
    part = made.content.tables[0].cells["DBA", "Accuracy"]
    for name in ("mechanisms/dba.html", "datasets/digits.html"):
        assert f"../tables/one/1.html#{part.anchor}" in pages[name].links
        assert f"../../{name}" in pages["tables/one/1.html"].links
    text = words(made.html("mechanisms/dba.html"))
    assert "one/1: DBA / Accuracy 50.0 70.0±0.1 … too few seeds 1 accuracy % digits" in text
    assert "attention.d_p 16" in text
    assert "Are W'_r and W'_c normalised?" in text  # of docs/deviations.md
    assert "DBA / Accuracy" not in words(made.html("mechanisms/luna.html"))


def test_every_verdict_has_a_mark_of_its_own():
    assert set(MARKS) == set(Verdict)
    loud = [mark for verdict, mark in MARKS.items() if verdict not in (Verdict.NOT_RUN, Verdict.NEEDS_DATA)]
    assert len({mark.sign for mark in loud}) == len(loud)
    assert len({mark.colour for mark in MARKS.values()}) == len(MARKS)


def test_what_filters_ask_for_is_on_the_pages(pages):
    asked = {attributes["name"] for tag, attributes in pages["runs.html"].elements if tag == "select"}
    assert asked == {"paper", "scale", "protocol"}
    for name in ("runs.html", "tables/one/1.html"):
        elements = pages[name].elements
        scales = {s for _, a in elements if "data-scale" in a for s in a["data-scale"].split(";")}
        assert {"paper", "laptop", "smoke, synthetic data"} <= scales, name
        [form] = [attributes for tag, attributes in elements if tag == "form"]
        assert "hidden" in form  # until JavaScript shows it


def test_tables_have_scopes_and_captions(made, pages):
    for name, page in pages.items():
        tags = [tag for tag, _ in page.elements]
        assert tags.count("caption") == tags.count("table"), name
        assert all("scope" in attributes for tag, attributes in page.elements if tag == "th"), name
        assert "data:," in page.links[:3]
        assert "#main" in page.links[:4]
        assert tags.count("h1") == 1
        assert tags.count("main") == 1


def test_colours_can_be_read(made):
    """Every colour of words against the paper and the shade, light and dark."""
    style = "".join(path.read_text() for path in (made.pages / "assets").glob("*.css"))
    colours = {name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", style)}
    words_in = ["ink", "soft", "accent", *(mark.colour for mark in MARKS.values())]
    for mode in (0, 1):
        for ground in ("paper", "shade"):
            for name in words_in:
                assert contrast(colours[name][mode], colours[ground][mode]) >= 4.5, (name, ground, mode)


def contrast(first, second):
    """Of two colours, as the Web Content Accessibility Guidelines define it."""

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)


def test_a_picture_with_damaged_numbers_is_shown_without_them(made, tmp_path):
    (tmp_path / "figures" / "attention").mkdir(parents=True)
    picture = tmp_path / "figures" / "attention" / "dba.png"
    picture.write_bytes(b"")
    picture.with_suffix(".json").write_text('{"overrides": [')
    [shown] = _Site(tmp_path / "pages", dataclasses.replace(made.content, pictures=[picture])).pictures()
    assert shown["name"] == "attention/dba"
    assert "without its numbers (Expecting value" in shown["of"]


def test_pages_of_runs_that_are_gone_are_removed_and_nothing_else(made, tmp_path):
    write_site(tmp_path / "pages", made.content)
    (tmp_path / "pages" / "mine.html").write_text("kept")
    fewer = dataclasses.replace(made.content, runs=made.content.runs[:1], own=[], pictures=[])
    write_site(tmp_path / "pages", fewer)
    left = {
        path.relative_to(tmp_path / "pages").as_posix() for path in (tmp_path / "pages").rglob("*") if path.is_file()
    }
    assert "mine.html" in left
    assert sum(name.startswith("runs/") for name in left) == 1
    assert not any(name.startswith("figures/") for name in left)
    assert not any("partial" in name for name in left)
    (tmp_path / "pages" / MANIFEST).write_text('["../outside.html", 3]')
    (tmp_path / "outside.html").write_text("kept")
    write_site(tmp_path / "pages", fewer)
    assert (tmp_path / "outside.html").exists()


def test_pages_that_stay_as_they_are_are_not_written_again(made, tmp_path):
    write_site(tmp_path, made.content)
    pages = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.html")}
    content = dataclasses.replace(made.content, made="2030-01-01T00:00:00+00:00")
    run = tmp_path / "runs" / f"{made.content.runs[0].key}.html"
    run.write_text("something else")
    write_site(tmp_path, content)
    written = {path for path in pages if path.stat().st_mtime_ns != pages[path]}
    assert {path for path in written if path.parent.name != "bench"} == {tmp_path / "index.html", run}
    assert "2030" in (tmp_path / "index.html").read_text()


def test_comparisons_are_copied_and_linked(made, tmp_path):
    page = tmp_path / "compare" / "text-custom-1a2b" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("a comparison")
    site = tmp_path / "report"
    write_site(site, dataclasses.replace(made.content, comparisons=[page]))
    assert 'href="compare/text-custom-1a2b.html"' in (site / "runs.html").read_text()
    assert (site / "compare" / "text-custom-1a2b.html").read_text() == "a comparison"


def test_the_benchmark_of_the_project_has_a_page(made, tmp_path, real_store):
    bench = json.loads(min((real_store / "bench").iterdir()).read_text())
    write_site(tmp_path, dataclasses.replace(made.content, project_benches=[bench]))
    assert 'href="bench/project.html"' in (tmp_path / "costs.html").read_text()
    assert bench["commit"] in (tmp_path / "bench" / "project.html").read_text()
    write_site(tmp_path, dataclasses.replace(made.content, project_benches=[]))
    assert not (tmp_path / "bench" / "project.html").exists()
