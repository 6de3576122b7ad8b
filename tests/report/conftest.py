"""A browser for the tests of pages."""

import pytest
from chromium import BROWSER, Chromium


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """What a script returns on a page; an error at anything that the console complains of."""
    if BROWSER is None:
        pytest.skip("no Chromium here (chromium, chromium-browser or google-chrome)")
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:

        def visit(page, script, *, width=1400, dark=False, hash="", before=""):
            return browser.visit(page.as_uri() + hash, script, width=width, dark=dark, before=before)

        yield visit
