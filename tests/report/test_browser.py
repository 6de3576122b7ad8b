"""The pages in a real browser: no error, no overflow on a phone, filters act, text can be read in light and dark."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from made_pages import build

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (chromium, chromium-browser or google-chrome)"),
]
PROBE = """
<script>
addEventListener("load", async () => {
  const found = await (async () => { %s })();
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""
FRAME = """<!doctype html><link rel="icon" href="data:,"><pre id="probe"></pre>
<script>addEventListener("message", (e) => { document.getElementById("probe").textContent = e.data; });</script>
<iframe src="%s" style="width: %dpx; height: 900px; border: 0"></iframe>
"""
LAYOUT = """
  const wide = [...document.querySelectorAll("main *")].filter((e) => {
    const inside = e.closest(".scroll, .plot, pre");
    return (!inside || inside === e) && e.getBoundingClientRect().right > innerWidth + 1;
  });
  return {inner: innerWidth, page: document.documentElement.scrollWidth,
          wide: wide.map((e) => e.outerHTML.slice(0, 80)),
          tables: [...document.querySelectorAll("table")].every((t) => t.closest(".scroll"))};
"""
CONTRAST = """
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => {
    const [r, g, b] = c.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c[3] === 255) return c;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  let seen = 0;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || ["SCRIPT", "STYLE", "TITLE"].includes(e.tagName.toUpperCase())) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith("svg");
    const pair = [rgb(svg ? style.fill : style.color), ground(e)];
    const [a, b] = pair.map((c) => light(c.slice(0, 3))).sort((x, y) => x - y);
    const ratio = (b + 0.05) / (a + 0.05);
    seen += 1;
    if (ratio < 4.5) poor.push([e.outerHTML.slice(0, 80), ratio]);
  }
  return {seen, poor, dark: matchMedia("(prefers-color-scheme: dark)").matches};
"""
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
  return {states, shown: !form.hidden, keep: document.querySelector("a.keep").href};
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.getbasetemp() / "made_pages")


def browse(page: Path, script: str, *, width=1400, dark=False, hash=""):
    """What a script returns on a page; raises AssertionError at anything the console complains of."""
    copy, frame = page.with_name(f"probed-{page.name}"), page.with_name(f"frame-{page.name}")
    probe = PROBE % script
    inside = probe.strip().removeprefix("<script>").removesuffix("</script>")
    allowed = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    text = page.read_text(encoding="utf-8").replace("script-src ", f"script-src 'sha256-{allowed}' ", 1)
    copy.write_text(text.replace("</body>", probe + "</body>"))
    frame.write_text(FRAME % (f"{copy.name}{hash}", width))  # a window of its own is never narrower than 500
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=1500,1000",
        "--virtual-time-budget=3000", "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    finally:
        copy.unlink()
        frame.unlink()
    assert not re.findall(r".*:CONSOLE.*", done.stderr)
    return json.loads(unescape(re.search(r'<pre id="probe">(.*)</pre>', done.stdout, re.DOTALL)[1]))


@pytest.mark.parametrize("name", ["index.html", "runs.html", "costs.html", "tables/one/1.html", "run"])
def test_nothing_is_wider_than_a_phone(made, name):
    page = f"runs/{made.content.runs[0].key}.html" if name == "run" else name
    found = browse(made.pages / page, LAYOUT, width=390)
    assert found == {"inner": 390, "page": 390, "wide": [], "tables": True}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["index.html", "tables/one/1.html"])
def test_text_stands_out(made, name, dark):
    found = browse(made.pages / name, CONTRAST, dark=dark)
    assert found["dark"] is dark
    assert found["poor"] == []
    assert found["seen"] > 40


def test_filters_hide_what_does_not_match_and_live_in_the_address(made):
    steps = [["paper", "one"], ["scale", "laptop"], ["paper", "other"], ["scale", ""]]
    found = browse(made.pages / "index.html", f"const STEPS = {json.dumps(steps)}; {FILTERS}")
    assert found["shown"]
    # two tables and six runs; those of paper one: a table and five runs; at laptop scale a table and one run
    assert [(hash, left) for hash, left, _ in found["states"]] == [
        ("", 8), ("#paper=one", 6), ("#paper=one&scale=laptop", 2), ("#paper=other&scale=laptop", 0),
        ("#paper=other", 1), ("", 8),
    ]  # fmt: skip
    assert found["states"][2][2] == "1 of 6 runs, 1 of 2 tables"


def test_an_address_brings_its_filters(made):
    script = """
      const layers = [...document.querySelectorAll(".grid .layer")].filter((e) => e.checkVisibility());
      return {scales: [...new Set(layers.map((e) => e.dataset.scale))], chosen: document.forms[0].elements.scale.value,
              links: [...document.querySelectorAll("a.keep")].map((a) => new URL(a.href).hash)};
    """
    page = made.pages / "tables" / "one" / "1.html"
    found = browse(page, script, hash="#scale=laptop&paper=one")
    assert found["scales"] == ["laptop"]
    assert found["chosen"] == "laptop"
    assert set(found["links"]) == {"#scale=laptop&paper=one"}  # the paper is for the pages that know papers
    assert set(browse(page, script)["scales"]) == {"paper", "laptop", "smoke, synthetic data"}
    assert browse(page, script, hash="#scale=%3Cb%3E")["chosen"] == ""


def test_a_cell_leads_to_its_runs_by_keyboard(made):
    anchor = made.content.tables[0].cells["Softmax", "Accuracy"].anchor
    script = f"""
      const first = document.querySelector("a, button, input, select, [tabindex]");
      first.focus();
      const skip = first.getBoundingClientRect();
      document.querySelector('.grid a[href="#{anchor}"]').click();
      await new Promise((done) => setTimeout(done, 50));
      const box = document.querySelector("article:target");
      const runs = [...box.querySelectorAll(".runs a")].map((a) => a.getAttribute("href"));
      const button = box.querySelector("button");
      return {{skip: first.textContent, seen: skip.left >= 0, runs, place: location.hash,
               label: button.getAttribute("aria-label")}};
    """
    page = made.pages / "tables" / "one" / "1.html"
    found = browse(page, script)
    assert (found["skip"], found["seen"]) == ("Skip to the content", True)
    assert found["place"] == f"#{anchor}"
    assert len(found["runs"]) == 3
    assert all((page.parent / run).is_file() for run in found["runs"])
    assert found["label"].startswith("Copy: python scripts/reproduce.py table=one/1")
