"""The documentation as a site: every page has its place, links lead somewhere, nothing comes from the network."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from conftest import CONFIGS

ROOT = CONFIGS.parent
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make site` builds it, where a warning is an error."""
    pytest.importorskip("material", reason='the site is built by mkdocs-material: pip install -e ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Addresses(HTMLParser):
    """What a page loads, and where it leads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded, self.links, self.names = [], [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag in ("img", "script", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(given["href"])
        elif tag == "a" and given.get("href"):
            self.links.append(given["href"])


def test_every_page_is_in_the_navigation(site):
    links = {link.partition("#")[0] for link in Addresses(site / "start.html").links}
    assert [page for page in PAGES if f"{page}.html" not in links] == []
    assert {"start", "adding", "protocols"} <= set(PAGES)


def test_the_navigation_names_pages_of_its_own_accord():
    """A page that mkdocs.yml does not name would be found under "More"; each has a title and a section instead."""
    named = set(re.findall(r"([\w-]+)\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])))
    assert set(PAGES) <= named


def test_pages_load_nothing_from_the_network_and_link_to_what_is_there(site):
    pages = {page: Addresses(page) for page in site.rglob("*.html") if page.name != "404.html"}
    for page, found in pages.items():
        assert [address for address in found.loaded if re.match(r"(https?:)?//", address)] == []
        for link in found.links + found.loaded:
            if re.match(r"https?://|mailto:", link):
                continue
            path, _, name = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page.name, link)
            assert not name or target not in pages or name in pages[target].names, (page.name, link)
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\((?:[\"'])?https?://", styles) == []


def test_source_files_have_pages(site):
    assert "attention" in (site / "source/src/subquad/attention/dba.py.html").read_text()
    [link] = [a for a in Addresses(site / "attentions/dba.html").links if a.endswith("attention/dba.py.html")]
    assert link == "../source/src/subquad/attention/dba.py.html"


def test_the_search_needs_no_server(site):
    """In a page opened as a file, a browser starts no worker and fetches no index: both are loaded as scripts."""
    assert "iframe-worker.js" in Addresses(site / "start.html").loaded
    assert "IFrameWorker" in (site / "iframe-worker.js").read_text()
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = ")
