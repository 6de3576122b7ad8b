"""What the comment of a task's file, or of those that it is made from, says on lines of its own."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from subquad.run.doors import CONFIGS

FACTS = ("Splits", "Source", "Licence", "Get", "Protocols")
"""What lines begin with, before a colon."""


def task_facts(name: str) -> dict[str, str]:
    """What a task's file says of it, and where it is silent the files that it is made from."""
    facts: dict[str, str] = {}
    queue = [CONFIGS / "task" / f"{name}.yaml"]
    while queue:
        path = queue.pop(0)
        lines, said = opening_comment(path), {"What": ""}
        label = "What"
        for line in lines:
            if found := re.match(rf"({'|'.join(FACTS)}): ", line):
                label, line = found[1], line[found.end() :]
            said[label] = f"{said.get(label, '')} {line}".strip()
        settings: Any = OmegaConf.load(path)
        if monitor := OmegaConf.select(settings, "task.monitor"):
            said["Metric"] = monitor.removeprefix("val/")
        facts = said | facts
        for parent in (part for part in settings.get("defaults", []) if isinstance(part, str) and part != "_self_"):
            queue.append(CONFIGS / "task" / f"{parent.removeprefix('/task/')}.yaml")
    return facts


def opening_comment(path: Path) -> list[str]:
    """The lines that a configuration opens with."""
    file = path.read_text().removeprefix("# @package _global_\n")
    comment = re.match(r"# (.*?)\n(?!# )", file, re.DOTALL)
    assert comment is not None, f"{path.relative_to(CONFIGS.parent)} must open with a comment"
    return comment[1].split("\n# ")


@cache
def training_rows(task: str) -> int | None:
    """How many rows a task trains on: the first number of its splits; None where that depends on your files."""
    found = re.match(r"([\d,]+)(?=[/ ])(?!/\d+/\d+ %)", task_facts(task)["Splits"])
    return int(found[1].replace(",", "")) if found else None


def download_size(task: str) -> str | None:
    """What fetching a task's files takes: "nothing", or the size that its comment states; None where none is stated."""
    get = task_facts(task)["Get"]
    if get.startswith("nothing to fetch"):
        return "nothing"
    found = re.search(r"\d[\d.,]* [KMGT]B\b", get)
    return found[0] if found else None
