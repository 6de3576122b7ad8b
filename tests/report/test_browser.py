"""The pages in a real browser: no error, no overflow on a phone, filters act, text can be read in light and dark."""

import dataclasses
import json
import re

import pytest
from chromium import AXE, CHECK, browsing
from conftest import RESULTS
from made_pages import build

from subquad.report.html.site import write_site

pytestmark = pytest.mark.slow
FILTERS = """
  const form = document.getElementById("filters");
  const left = () => [...document.querySelectorAll("main [data-item]")].filter((e) => e.checkVisibility()).length;
  const state = () => [location.hash, left(), document.getElementById("shown").textContent];
  const states = [state()];
  for (const [name, value] of STEPS) {
    form.elements[name].value = value;
    form.dispatchEvent(new Event("change", {bubbles: true}));
    states.push(state());
  }
  form.reset();
  await new Promise((done) => setTimeout(done, 50));
  states.push(state());
  return {states, shown: !form.hidden};
"""
EXPLORE = """
  const form = document.getElementById("explorer"), shown = () => document.getElementById("shown").textContent;
  const rows = () => [...document.querySelectorAll("#cells tbody tr")].map((row) => row.cells[0].textContent);
  const states = [[location.hash, shown(), rows()]], times = [];
  for (const [name, value] of STEPS) {
    const start = performance.now();
    const heads = [...document.querySelectorAll("thead button")];
    if (name === "sort") heads.find((head) => head.textContent.startsWith(value)).click();
    else {
      form.elements[name].value = value;
      form.elements[name].dispatchEvent(new Event("input", {bubbles: true}));
    }
    document.body.offsetHeight;  // laid out
    times.push(performance.now() - start);
    states.push([location.hash, shown(), rows()]);
  }
  return {states, times};
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The pages with the benchmark of the project."""
    built = build(tmp_path_factory.getbasetemp() / "made_pages")
    bench = json.loads(min((RESULTS / "bench").iterdir()).read_text())
    pages = tmp_path_factory.mktemp("pages")
    write_site(pages, dataclasses.replace(built.content, project_benches=[bench]))
    return dataclasses.replace(built, pages=pages)


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    yield from browsing(tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize("dark", [False, True])
def test_no_page_violates_level_aa_or_is_wider_than_its_window(made, browse, dark):
    """axe-core, on a wide screen, a tablet and a phone; and no name in a chart covers another.

    In the dark only colours differ.
    """
    anchor = made.content.tables[0].cells["Softmax", "Accuracy"].anchor
    names = [
        "index.html", "explorer.html", "mechanisms.html", "mechanisms/softmax.html", "datasets.html", "runs.html",
        "datasets/digits.html", "tables/one/1.html", "costs.html", "bench/project.html",
        next(f"runs/{run.key}.html" for run in made.content.runs if run.record.seed == 1),
    ]  # fmt: skip
    visits = [(name, width, "") for name in names for width in ((1440,) if dark else (1440, 1024, 390))]
    visits.append(("tables/one/1.html", 390, f"#{anchor}"))
    axe = AXE.read_text(encoding="utf-8")
    found = {
        visit: browse(made.pages / visit[0], CHECK, width=visit[1], hash=visit[2], dark=dark, before=axe)
        for visit in visits
    }
    expected = {"dark": dark, "too_wide": 0, "violations": [], "cut": 0, "skipped": 0, "overlaps": 0, "charts": True}
    assert {visit: seen for visit, seen in found.items() if seen != expected} == {}


def test_the_explorer_filters_searches_and_sorts_and_its_state_is_the_address(made, browse):
    steps = [["mechanism", "softmax"], ["q", "one accuracy"], ["mechanism", ""], ["sort", "ours"], ["sort", "ours"]]
    found = browse(made.pages / "explorer.html", f"const STEPS = {json.dumps(steps)}; {EXPLORE}")
    hashes, texts, rows = zip(*found["states"], strict=True)
    total = sum(len(table.shown) for table in made.content.tables)
    assert hashes == (
        "", "#mechanism=softmax", "#q=one+accuracy&mechanism=softmax", "#q=one+accuracy", "#q=one+accuracy&sort=ours",
        "#q=one+accuracy&sort=ours&down=1",
    )  # fmt: skip
    assert [text.split()[0] for text in texts[:3]] == [str(total), "2", "1"]
    assert rows[2] == ["one/1: Softmax / Accuracy"]
    assert rows[-1][0] == "one/1: Softmax / Accuracy"  # 89.9 is the most
    assert sorted(rows[-1]) == sorted(rows[3])
    assert max(found["times"]) < 100
    again = browse(made.pages / "explorer.html", f"const STEPS = []; {EXPLORE}", hash=hashes[2])
    assert again["states"] == [[*found["states"][2]]]


def test_a_chart_is_saved_as_wide_as_a_column_with_its_font(made, browse):
    script = """
      const saved = [];
      URL.createObjectURL = (blob) => { saved.push(blob); return "#"; };
      HTMLAnchorElement.prototype.click = () => {};
      for (const button of document.querySelectorAll("#arena ~ figure .tools button, #speed ~ figure .tools button")) {
        const before = saved.length;
        button.click();
        while (saved.length === before) await new Promise((done) => setTimeout(done, 20));
      }
      const picture = await createImageBitmap(saved[1]);
      return {svg: await saved[0].text(), types: saved.map((blob) => blob.type), width: picture.width};
    """
    found = browse(made.pages / "index.html", script, dark=True)
    assert found["types"] == ["image/svg+xml", "image/png"]
    assert found["width"] == pytest.approx(600 * 3.3, abs=2)
    svg = found["svg"]
    assert re.search(r'^<svg [^>]*width="3.3', svg)
    assert "font/woff2;base64,d09G" in svg
    assert "var(" not in svg
    assert "light-dark" not in svg
    assert "softmax" in svg
    assert 'fill="rgb(27, 31, 36)"' in svg  # of the light page


def test_filters_hide_what_does_not_match_and_live_in_the_address(made, browse):
    steps = [["paper", "one"], ["scale", "laptop"], ["paper", "other"], ["scale", ""]]
    found = browse(made.pages / "runs.html", f"const STEPS = {json.dumps(steps)}; {FILTERS}")
    assert found["shown"]
    project = len(made.content.project)
    # six runs and a configuration; five runs of paper one, one of them at laptop scale; none of the other paper
    assert [(hash, left) for hash, left, _ in found["states"]] == [
        ("", 7 + project), ("#paper=one", 5), ("#paper=one&scale=laptop", 1), ("#paper=other&scale=laptop", 0),
        ("#paper=other", 0), ("", 7 + project),
    ]  # fmt: skip
    assert found["states"][2][2] == f"1 of {6 + project} runs, 0 of 1 configurations"


def test_an_address_brings_its_filters(made, browse):
    script = """
      const layers = [...document.querySelectorAll(".grid .layer")].filter((e) => e.checkVisibility());
      return {scales: [...new Set(layers.map((e) => e.dataset.scale))], chosen: document.forms[0].elements.scale.value};
    """
    page = made.pages / "tables" / "one" / "1.html"
    found = browse(page, script, hash="#scale=laptop&paper=one")
    assert found["scales"] == ["laptop"]
    assert found["chosen"] == "laptop"
    assert set(browse(page, script)["scales"]) == {"paper", "laptop", "smoke, synthetic data"}
    assert browse(page, script, hash="#scale=%3Cb%3E")["chosen"] == ""


def test_a_cell_leads_to_its_runs_by_keyboard(made, browse):
    anchor = made.content.tables[0].cells["Softmax", "Accuracy"].anchor
    script = f"""
      const first = document.querySelector("a, button, input, select, [tabindex]");
      first.focus();
      const skip = first.getBoundingClientRect();
      document.querySelector('.grid a[href="#{anchor}"]').click();
      await new Promise((done) => setTimeout(done, 50));
      const box = document.querySelector("article:target");
      const runs = [...box.querySelectorAll(".runs a")].map((a) => a.getAttribute("href"));
      const button = box.querySelector(".command button"), place = location.hash;
      dispatchEvent(new KeyboardEvent("keydown", {{key: "Escape"}}));
      return {{skip: first.textContent, seen: skip.left >= 0, runs, place, label: button.getAttribute("aria-label"),
               back: document.activeElement.getAttribute("href"), closed: location.hash}};
    """
    page = made.pages / "tables" / "one" / "1.html"
    found = browse(page, script)
    assert (found["skip"], found["seen"]) == ("Skip to the content", True)
    assert (found["place"], found["closed"], found["back"]) == (f"#{anchor}", "#table", f"#{anchor}")
    assert len(found["runs"]) == 3
    assert all((page.parent / run).is_file() for run in found["runs"])
    assert found["label"].startswith("Copy: python scripts/reproduce.py table=one/1")
