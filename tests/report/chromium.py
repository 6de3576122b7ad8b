"""Chromium without a window, driven through a pipe by its DevTools protocol: pages at a size and in a colour scheme."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
CHECK = """
  const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  const {violations} = await axe.run(document, {runOnly, resultTypes: ["violations"], preload: false});
  const reached = [...document.querySelectorAll("main :is(a[href], button, input, select, summary, [tabindex])")];
  return {
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    too_wide: document.documentElement.scrollWidth - innerWidth,
    violations: violations.map((v) => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 120)]),
    cut: [...document.querySelectorAll("table")].filter((t) => !t.closest(".scroll[tabindex]")).length,
    skipped: reached.filter((e) => e.tabIndex < 0 && !e.disabled && e.tagName !== "ARTICLE").length,
    overlaps: [...document.querySelectorAll(".stage svg")].map((svg) => {
      const boxes = [...svg.querySelectorAll("text")].map((t) => t.getBoundingClientRect()).filter((b) => b.width);
      return boxes.filter((a, i) => boxes.slice(0, i).some((b) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)).length;
    }).reduce((a, b) => a + b, 0),
    charts: [...document.querySelectorAll("figure.chart")].every((f) =>
      !f.checkVisibility() || f.querySelector(".stage svg")),
  };
"""
"""What a page looks like to the rules of level AA, to its window and to the keyboard; names in charts that overlap."""


def browsing(profile: Path) -> Iterator[Callable[..., Any]]:
    """A function that returns what a script returns on a page; an error at anything that the console complains of."""
    if BROWSER is None:
        pytest.skip("no Chromium here (chromium, chromium-browser or google-chrome)")
    with Chromium(profile) as browser:

        def visit(
            page: Path, script: str, *, width: int = 1400, dark: bool = False, hash: str = "", before: str = ""
        ) -> Any:
            return browser.visit(page.as_uri() + hash, script, width=width, dark=dark, before=before)

        yield visit


class Chromium:
    """One browser; used as a context."""

    def __init__(self, profile: Path) -> None:
        taken, given = os.pipe()
        heard, said = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command = [str(BROWSER), *options, "--remote-debugging-pipe"]

        def connect() -> None:  # the browser reads its file 3 and writes to its file 4
            for source, place in ((os.dup(taken), 3), (os.dup(said), 4)):
                os.dup2(source, place)

        self._process = subprocess.Popen(
            command, preexec_fn=connect, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(taken)
        os.close(said)
        self._out, self._in = os.fdopen(given, "wb", 0), os.fdopen(heard, "rb")
        self._number, self._events, self._buffer = 0, [], b""

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: Any) -> None:
        self._send("Browser.close")
        self._process.wait(30)
        self._out.close()
        self._in.close()

    def visit(self, url: str, script: str, *, width: int, dark: bool = False, before: str = "") -> Any:
        """What the body of an async function returns on a page; AssertionError at anything that the console says.

        before: a script that runs first.
        """
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._events.clear()
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable", session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", session, features=[scheme])
        self._send("Page.navigate", session, url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._read())
        self._send("Runtime.evaluate", session, expression=before)
        drawn = (
            "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))));"
        )
        called = {"expression": f"(async () => {{ {drawn} {script} }})()", "awaitPromise": True, "returnByValue": True}
        answer = self._send("Runtime.evaluate", session, **called)
        said = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        complaints = [event for event in self._events if event["method"] in said]
        assert not complaints, complaints
        assert "exceptionDetails" not in answer, answer
        self._send("Target.closeTarget", targetId=target)
        return answer["result"].get("value")

    def _send(self, method: str, session: str = "", **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._out.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (heard := self._read()).get("id") != self._number:
            self._events.append(heard)
        assert "error" not in heard, heard
        return heard["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._in.fileno(), 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
