"""All cells of all tables as lines, by mechanism and by data set: the explorer and the pages of both."""

import ast
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from subquad.config.mechanisms import NO_ATTENTION, Choice, mechanism_of, mechanisms
from subquad.config.task_metadata import about_task, task_of
from subquad.report.html.charts import comparisons
from subquad.report.mechanism_style import colours
from subquad.report.verdict_style import MARKS, Mark
from subquad.results.model import CellResults, TableResults
from subquad.results.table import Cell
from subquad.results.verdict import Verdict
from subquad.utils.display import CHECKOUT

ARENA = "arena"
"""The table of all mechanisms in one model, which their pages and the first page show a part of."""
MISSING = (Verdict.NOT_RUN, Verdict.NEEDS_DATA)
SECTIONS = {
    "trained": "Trained: accuracy and other results", "relative_speed": "Speed", "relative_memory": "Memory",
    "passed_rank": "Numbers passed on", "counted": "Operations, parameters and other costs",
    "stated": "Settings and constants",
}  # fmt: skip
"""The sections of the page of a mechanism or data set: kinds of cells, measured ones by their function."""


@dataclass(frozen=True, slots=True)
class Line:
    """A cell with what it is filtered by; texts are empty where there is nothing."""

    table: str
    paper: str
    row: str
    column: str
    anchor: str
    mechanism: str
    task: str
    metric: str
    group: str
    section: str
    mean: str
    spread: str
    printed: str
    verdict: Verdict
    seeds: str
    scale: str
    machine: str
    part: CellResults

    @property
    def href(self) -> str:
        """The place of the cell, from the folder of pages."""
        return f"tables/{self.table}.html#{self.anchor}"

    @property
    def mark(self) -> Mark:
        """The sign of the verdict."""
        return MARKS[self.verdict]

    @property
    def measured(self) -> bool:
        """Whether it has a value."""
        return self.verdict not in MISSING


def lines_of(tables: Iterable[TableResults]) -> list[Line]:
    """The lines of all shown cells."""
    return [_line(table, part) for table in tables for part in table.shown]


def _line(table: TableResults, part: CellResults) -> Line:
    cell, result, kind = part.cell, part.decisive, table.kind(part)
    parts = [table.table.cells[place] for place in cell.mean] or [cell]
    function = measured_by(cell)
    machines = [run.record.machine for run in result.runs]
    named = dict.fromkeys(str(machine.get("gpu") or machine.get("cpu") or "") for machine in machines)
    mean, _, spread = result.text.partition(" ± ")
    return Line(
        table=table.table.name, paper=table.paper, row=cell.row, column=cell.column, anchor=part.anchor,
        mechanism=_common(mechanism_of(each.overrides) for each in parts),
        task=_common(task_of(each.overrides) for each in parts),
        metric=" ".join(filter(None, (cell.metric.label or cell.metric.name, cell.metric.unit))),
        group=table.group(part),
        section=kind if kind != "measured" else function if function in SECTIONS else "counted",
        mean=mean, spread=spread, printed=cell.printed.text if cell.printed else "", verdict=part.verdict,
        seeds=str(result.summary.seeds) if result.runs and result.summary else "",
        scale=result.scope.size if result.text else "",
        machine=", ".join(named) or result.measurement.get("machine", ""), part=part,
    )  # fmt: skip


def measured_by(cell: Cell) -> str:
    """The name of the function that measures a cell; empty for a trained one."""
    return str(cell.measure.get("_target_", "")).rpartition(".")[2]


def _common(names: Iterable[str]) -> str:
    """The name that all have; empty if they differ."""
    found = set(names)
    return found.pop() if len(found) == 1 else ""


CODED = ("table", "paper", "column", "mechanism", "task", "metric", "group", "verdict", "scale", "machine")
"""What assets/explorer.js reads as numbers of a list, because it is the same in many lines."""


def explorer_data(lines: Sequence[Line]) -> dict[str, Any]:
    """The lines for the explorer: the values of each coded field, then a list a line, coded fields first."""
    values: dict[str, dict[str, int]] = {field: {} for field in CODED}

    def code(field: str, line: Line) -> int:
        value = line.verdict.value if field == "verdict" else getattr(line, field)
        return values[field].setdefault(value, len(values[field]))

    rows = [
        [*(code(field, x) for field in CODED), x.row, x.anchor, x.mean, x.spread, x.printed, x.seeds] for x in lines
    ]
    signs = {verdict.value: [mark.sign, mark.colour] for verdict, mark in MARKS.items()}
    names = {key: name_of(key) for key in values["mechanism"]}
    return {"values": {key: list(found) for key, found in values.items()}, "rows": rows, "signs": signs, "names": names}


def sections(lines: Sequence[Line], root: str) -> list[dict[str, Any]]:
    """The lines by section: those with a value, a chart of the trained ones beside their printed values, the others.

    root: from the page to the folder of pages.
    """
    found = []
    for key, heading in SECTIONS.items():
        own = [line for line in lines if line.section == key]
        known = sorted((line for line in own if line.measured), key=lambda line: not line.printed)
        drawn = [line for line in known if line.printed] if key == "trained" else []
        if own:
            found.append({
                "key": key, "heading": heading, "lines": [line for line in known if line.printed],
                "own": [line for line in known if not line.printed],
                "missing": [line for line in own if not line.measured],
                "charts": comparisons([line.part for line in drawn], [line.table for line in drawn], root),
            })  # fmt: skip
    return found


def in_arena(lines: Iterable[Line], mechanism: str) -> dict[str, Any]:
    """The rows of a mechanism in the arena, between those of softmax and of no attention."""
    rows: dict[str, dict[str, Line]] = {}
    for line in lines:
        if line.table == ARENA and line.mechanism in (mechanism, "softmax", NO_ATTENTION):
            rows.setdefault(line.row, {})[line.column] = line
    order = ("softmax", mechanism, NO_ATTENTION)
    found = sorted(rows.values(), key=lambda row: order.index(next(iter(row.values())).mechanism))
    own = any(line.mechanism == mechanism for row in found for line in row.values())
    columns = dict.fromkeys(column for row in found for column in row)
    return {"columns": list(columns), "rows": found} if own else {}


def grouped(lines: Iterable[Line], field: str) -> list[dict[str, Any]]:
    """How many cells each mechanism or task has, those with a value and the trained ones, and their verdicts."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if key := getattr(line, field):
            groups.setdefault(key, []).append(line)
    return [
        {
            "key": key, "cells": len(own), "measured": sum(line.measured for line in own),
            "trained": sum(line.section == "trained" and line.measured for line in own),
            "counts": counts_of(line.verdict for line in own if line.measured and line.section == "trained"),
        }
        for key, own in sorted(groups.items())
    ]  # fmt: skip


def counts_of(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """How many of each verdict, in the order of the legend."""
    counts = Counter(verdicts)
    return [{"mark": mark, "word": v.value, "count": counts[v]} for v, mark in MARKS.items() if counts[v]]


@dataclass(frozen=True, slots=True)
class Described:
    """What is said of a mechanism. formula: of its class; deviations: question, keys and reason, as Markdown."""

    key: str
    name: str
    text: str
    source: str
    colour: tuple[str, str]
    formula: str = ""
    choices: Sequence[Choice] = ()
    deviations: Sequence[tuple[str, ...]] = ()


@cache
def name_of(key: str) -> str:
    """The name of a mechanism: the beginning of its module."""
    return _texts(key)[0]


@cache
def describe(key: str) -> Described:
    """What the files of a mechanism say of it."""
    choices = mechanisms().get(key, [])
    name, formula = _texts(key)
    text, _, source = (choices[0].text if choices else "").partition(" Source: ")
    about = text.partition(": ")[2] or text
    return Described(key, name, about[:1].upper() + about[1:], source, colours(key), formula, choices, _deviations(key))


def _texts(key: str) -> tuple[str, str]:
    """The name and the formula: the first line of a mechanism's module, and the first paragraph of its first class."""
    if key in ("", NO_ATTENTION):
        return ("no attention" if key else "none, or several"), ""
    for package in ("attention", "backbones"):
        spec = find_spec(f"subquad.{package}.{key}")
        if spec is not None and spec.origin:
            tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
            name = re.split(r" \(|: |\.$", (ast.get_docstring(tree) or key).splitlines()[0])[0]
            classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
            formula = next(filter(None, map(ast.get_docstring, classes)), "")
            return name, formula.partition("\n\nArgs:")[0].partition("\n\nReleased code:")[0]
    return key, ""


def _deviations(key: str) -> list[tuple[str, ...]]:
    """The rows of docs/deviations.md in the section of a mechanism; none where the package is installed without it."""
    wanted = _letters(key)
    for title, rows in _sections_of_deviations().items():
        plain = _letters(title)
        if wanted == plain or plain in (f"{wanted}attention", f"{wanted}transformer", f"sparse{wanted}attention"):
            return rows
    own = {f"attention.{key}" for choice in mechanisms().get(key, []) for key, _, _ in choice.settings}
    rows = _sections_of_deviations().get("Primal-Dual", [])
    return [row for row in rows if any(f"`{name}`" in row[1] for name in own)]


@cache
def _sections_of_deviations() -> dict[str, list[tuple[str, ...]]]:
    if CHECKOUT is None:
        return {}
    text = (CHECKOUT / "docs" / "deviations.md").read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, ...]]] = {}
    for part in text.split("\n## ")[1:]:
        table = [line for line in part.partition("\n### ")[0].splitlines() if line.startswith("| ")]
        rows = [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in table[1:]]
        found[part.splitlines()[0]] = [row for row in rows if len(row) == 3]
    return found


def _letters(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name.lower())
    return re.sub(r"[^a-z0-9]", "", plain)


def task_facts(name: str) -> dict[str, str]:
    """What the file of a task says of its data, and the command that fetches it."""
    about = about_task(name)
    keys = ("what", "splits", "metric", "source", "licence", "get", "protocols")
    return {key: str(about[key]) for key in keys if about.get(key)}
