"""The page that answers which row to take, in a real browser: charts follow their choices, and all can be read."""

import pytest
from chromium import AXE, CHECK, browsing
from made_answers import filled

from subquad.report.html.site import write_site
from subquad.results.model import Content

pytestmark = pytest.mark.slow
CHOOSE = """
  const drawn = () => [...document.querySelectorAll("figure.chart")].slice(0, 2).map((figure) => [
    figure.querySelector(".axes").textContent, figure.querySelectorAll("[data-mark=dot] a").length,
    figure.querySelectorAll("[data-mark=cell] rect[fill='var(--better)']").length,
    figure.querySelectorAll("[data-mark=cell] rect").length]);
  const states = [drawn()];
  for (const [i, value] of [[0, "state"], [1, "digits"], [2, "digits"]]) {
    const select = document.querySelectorAll("figure select")[i];
    select.value = value;
    select.dispatchEvent(new Event("change"));
  }
  await new Promise((done) => setTimeout(done, 50));
  states.push(drawn());
  return states;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    content = Content(
        tables=[filled(folder)], runs=[], own=[], project=[], outdated=[], broken=[], failed=[], unfinished=0,
        pictures=[], benches=[], made="today",
    )  # fmt: skip
    write_site(folder, content)
    return folder / "tables" / "table.html"


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    yield from browsing(tmp_path_factory.mktemp("profile"))


def test_charts_draw_what_is_chosen(page, browse):
    first, second = browse(page, CHOOSE)
    [scatter, matrix], [chosen, other] = first, second
    assert scatter[:2] == ["↑ recall (accuracy, %), → fast (speed to softmax)", 4]
    assert matrix[2:] == [5, 6]  # of six pairs only softmax and DBA are within chance of one another
    assert chosen[:2] == [
        "↑ digits (accuracy, %), → state (numbers passed on)",
        3,
    ]  # without attention 0 is passed on
    assert other[2:] == [0, 6]


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_violates_no_rule_and_fits_a_phone(page, browse, dark):
    axe = AXE.read_text(encoding="utf-8")
    expected = {"dark": dark, "too_wide": 0, "violations": [], "cut": 0, "skipped": 0, "overlaps": 0, "charts": True}
    for width in (1280, 400):
        assert browse(page, CHECK, width=width, dark=dark, before=axe) == expected
