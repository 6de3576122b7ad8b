"""The page of a benchmark says what was measured, and nothing that was not."""

import re
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError

from subquad.measure.growth import NO_ATTENTION
from subquad.report.html.bench_page import write_bench_page
from subquad.report.html.page import write_page

FACTS = {
    "finished": "2026-01-02", "threads": 2, "rounds": 5, "layers": 4, "cuda": False, "command": "python x.py <a>",
    "machine": {"cpu": "A <CPU>", "gpu": None}, "versions": {"torch": "2"}, "commit": "abc",
}  # fmt: skip


def rows(names, lengths, seconds, **group):
    setting = {"level": "model", "mode": "inference", "dim": 8, "batch": 1, "dtype": "float32", "compiled": False}
    return [
        {
            **setting, **group, "length": n, "attention": name, "median_s": seconds(name, n), "peak_bytes": n * 2**20,
            "speedup_over_softmax": seconds("softmax", n) / seconds(name, n), "speedup_range": (0.5, 9.0),
        }
        for name in names
        for n in lengths
    ]  # fmt: skip


def cost(name, n):
    return {"softmax_explicit": 2e-6 * n * n, "softmax": 1e-6 * n * n, "dba": 64e-6 * n, NO_ATTENTION: 32e-6 * n}[name]


class Outline(HTMLParser):
    """Texts of table rows, and what a page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.sources, self._open = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append("")
        self._open = tag in ("th", "td", "small")
        self.sources += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data):
        if self._open and self.rows:
            self.rows[-1] += " " + data.strip()


def test_ratios_exponents_and_crossovers_are_those_of_the_numbers(tmp_path):
    names = ("softmax_explicit", "softmax", "dba", NO_ATTENTION)
    page = tmp_path / "deep" / "index.html"
    write_bench_page(page, rows(names, (16, 256), cost), FACTS)
    text = page.read_text()
    [dba] = [" ".join(row.split()) for row in Outline(text).rows if row.split()[:1] == ["dba"] and "×" in row]
    # 64 µs a token: 1.02 and 16.4 ms; softmax 0.256 and 65.5 ms; half the speed without attention; meets softmax at 64
    assert dba == "dba 1.02 × 0.25, 50% of no attention 16.4 × 4.00, 50% of no attention 1.00 64"
    assert "A &lt;CPU&gt;" in text
    assert "python x.py &lt;a&gt;" in text
    assert list(page.parent.iterdir()) == [page]


def test_the_page_needs_no_network(tmp_path):
    write_bench_page(tmp_path / "p.html", rows(("softmax_explicit", "softmax"), (16, 32), cost), FACTS)
    text = (tmp_path / "p.html").read_text()
    assert all(source.startswith(("#", "data:")) for source in Outline(text).sources)
    assert "@import" not in text
    assert "url(http" not in text
    assert text.count("<svg") == 2
    assert "<?xml" not in text


def test_one_length_has_no_curve_and_settings_stay_apart(tmp_path):
    names = ("softmax_explicit", "softmax")
    results = rows(names, (16,), cost) + rows(names, (16,), cost, dtype="bfloat16", compiled=True)
    results += rows(names, (16,), cost, compiled="reduce-overhead")
    write_bench_page(tmp_path / "p.html", results, FACTS)
    text = (tmp_path / "p.html").read_text()
    assert re.findall(r"<h2>(.*)</h2>", text) == [
        "Model, inference: d = 8, batch 1, float32", "Model, inference: d = 8, batch 1, bfloat16, compiled",
        "Model, inference: d = 8, batch 1, float32, compiled (reduce-overhead)",
    ]  # fmt: skip
    assert "<svg" not in text
    assert "exponent p<" not in text


def test_a_page_with_a_hole_is_not_written(tmp_path):
    with pytest.raises(UndefinedError, match="groups"):
        write_page("bench.html.j2", tmp_path / "p.html", FACTS)
    assert not (tmp_path / "p.html").exists()


def test_a_row_without_numbers_does_not_fit(tmp_path):
    found = rows(("softmax_explicit", "softmax", "dba", NO_ATTENTION), (16, 256), cost)
    numbers = {"median_s", "peak_bytes", "speedup_over_softmax", "speedup_range"}
    found[1] = {key: value for key, value in found[1].items() if key not in numbers} | {"fits": False}
    write_bench_page(tmp_path / "p.html", found, FACTS)
    times, memory = [
        " ".join(row.split()) for row in Outline((tmp_path / "p.html").read_text()).rows if "softmax explicit" in row
    ]
    assert times == "softmax explicit 0.512 × 0.50, 100% of no attention does not fit"
    assert memory.endswith("does not fit")
