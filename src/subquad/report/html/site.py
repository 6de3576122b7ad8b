"""The folder of pages: overview, a page for each table and each run, the list of runs, figures and benchmarks."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.report.html.bench_page import bench_facts
from subquad.report.html.catalogue import (
    ARENA,
    MISSING,
    counts_of,
    describe,
    explorer_data,
    grouped,
    in_arena,
    lines_of,
    measured_by,
    name_of,
    sections,
    task_facts,
)
from subquad.report.html.charts import cost_chart, scatters, speed_chart, tall
from subquad.report.html.page import copy_assets, write_page, write_whole
from subquad.report.html.view_models import Cells, repeated_row, run_facts, run_row, table_facts
from subquad.report.markdown_latex import latex, markdown
from subquad.report.verdict_style import MARKS
from subquad.results.benches import bench_device
from subquad.results.model import GROUPS, Content, Run, TableResults
from subquad.results.repeats import repeats
from subquad.results.verdict import Verdict
from subquad.utils.atomic import atomic_write
from subquad.utils.display import as_typed
from subquad.utils.errors import first_line

MANIFEST = ".pages.json"
"""Lists the files of the last call; files that a call does not write again are removed."""
SPEED = {"relative_speed", "relative_memory", "inference_gain", "throughput"}
"""The functions that measure time and memory."""


def write_site(folder: Path, content: Content) -> Path:
    """Writes all pages and returns the path of the first. Each appears whole, the first one last."""
    site = _Site(folder, content)
    site.written.update(copy_assets(folder))
    site.page("explorer.html.j2", "explorer.html", {"data": explorer_data(site.lines)}, here="explorer")
    site.mechanisms()
    site.datasets()
    for part in content.tables:
        site.page(
            "table.html.j2", f"tables/{part.table.name}.html", table_facts(part, site.path, content.project_benches)
        )
        site.text(f"tables/{part.table.name}.md", markdown(part))
        site.text(f"tables/{part.table.name}.tex", latex(part))
    for run in (*content.runs, *content.project):
        site.page("run.html.j2", site.path(run), run_facts(run, site.cells))
    own = {run.key for run in content.own}
    rows = [run_row(run, site.cells, site.path) for run in reversed(content.runs)]
    site.page("costs.html.j2", "costs.html", {
        "benches": site.benches(), "pictures": site.pictures(), "project_bench": site.project_bench(),
        "speed_tables": [part.table for part in content.tables if SPEED & {measured_by(c.cell) for c in part.shown}],
    }, here="costs")  # fmt: skip
    site.page("runs.html.j2", "runs.html", {
        "of_tables": [row for row in rows if row["key"] not in own], "own": [row for row in rows if row["key"] in own],
        "repeated": [repeated_row(line, site.path) for line in repeats(content.own)],
        "project": [run_row(run, site.cells, site.path) for run in reversed(content.project)],
        "comparisons": site.comparisons(), "outdated": content.outdated,
        "failed": content.failed, "broken": content.broken, "papers": [p["pair"] for p in site.papers()],
    }, here="runs")  # fmt: skip
    site.page("index.html.j2", "index.html", site.overview(rows), here="index")
    site.finish()
    return folder / "index.html"


class _Site:
    """Pages of one folder."""

    def __init__(self, folder: Path, content: Content) -> None:
        self.folder, self.content = folder, content
        self.written: set[str] = set()
        self.cells, self.lines = Cells(content.tables), lines_of(content.tables)
        scopes = sorted({run.scope for run in content.runs} | {s for part in content.tables for s in part.scopes})
        self.shared: dict[str, Any] = {
            "made": content.made, "scopes": scopes, "mark_of": MARKS, "name_of": name_of, "charted": False,
            "marks": [{"mark": mark, "word": verdict.value} for verdict, mark in MARKS.items()],
        }  # fmt: skip

    def page(self, template: str, name: str, facts: Mapping[str, Any], here: str = "") -> None:
        """Writes one page; `here` is its place in the navigation."""
        root = "../" * name.count("/")
        write_page(template, self.folder / name, {**self.shared, **facts, "root": root, "here": here})
        self.written.add(name)

    def text(self, name: str, text: str) -> None:
        """Writes a file that is no page."""
        write_whole(self.folder / name, text)
        self.written.add(name)

    def path(self, run: Run) -> str:
        """Where the page of a run is, in letters that need no quoting in a link."""
        plain = re.sub(r"[^\w./=-]", "_", run.key, flags=re.ASCII)
        tail = "" if plain == run.key else f"-{hashlib.sha256(run.key.encode('utf-8', 'replace')).hexdigest()[:8]}"
        return f"runs/{plain}{tail}.html"

    def finish(self) -> None:
        """Removes what an earlier call wrote and this one did not, and keeps the list for the next."""
        manifest = self.folder / MANIFEST
        try:
            earlier = set(json.loads(manifest.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            earlier = set()
        for name in earlier - self.written:
            if isinstance(name, str) and not Path(name).is_absolute() and ".." not in Path(name).parts:
                (self.folder / name).unlink(missing_ok=True)
        write_whole(manifest, json.dumps(sorted(self.written)))

    def benches(self) -> list[dict[str, str]]:
        """Pages of benchmarks, copied beside these."""
        return [self._copied(path, "bench", path.parent.name, ".html") for path in self.content.benches]

    def comparisons(self) -> list[dict[str, str]]:
        """Pages of comparisons, copied beside these."""
        return [self._copied(path, "compare", path.parent.name, ".html") for path in self.content.comparisons]

    def project_bench(self) -> str:
        """The page of the benchmark that the project keeps; empty without one."""
        if (bench := self.content.project_bench) is None:
            return ""
        settings, name = bench["settings"], "bench/project.html"
        about = {
            "threads": bench["machine"]["threads"], "rounds": settings["rounds"], "layers": settings["layers"],
            "cuda": bench_device(bench) == bench["machine"].get("gpu"), "command": as_typed("python scripts/bench.py"),
        }  # fmt: skip
        facts = bench_facts(bench["results"], {**bench, **about}, lambda costs, unit: cost_chart(costs, unit, unit))
        self.page("project_bench.html.j2", name, {**facts, "charted": True})
        return name

    def pictures(self) -> list[dict[str, str]]:
        """Figures, copied beside these pages; `of`: the overrides that they were drawn with, and what they lack."""
        found = []
        for path in self.content.pictures:
            place = path.parent if path.parent.name == path.stem else path.with_suffix("")
            try:
                facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                facts = {"overrides": [f"without its numbers ({first_line(error)})"]}
            given = [override for override in facts.get("overrides", []) if not override.startswith("paths.")]
            of = ". ".join(filter(None, (" ".join(given), *facts.get("numbers", {}).get("missing", []))))
            found.append(self._copied(path, "figures", "/".join(place.parts[-2:]), ".png") | {"of": of})
        return found

    def _copied(self, source: Path, kind: str, name: str, suffix: str) -> dict[str, str]:
        plain = f"{kind}/{re.sub(r'[^A-Za-z0-9_.+-]', '-', name)}{suffix}"
        target = self.folder / plain
        with atomic_write(target, several=True) as place:
            shutil.copyfile(source, place)
        self.written.add(plain)
        return {"href": plain, "name": name}

    def mechanisms(self) -> None:
        """A page for each mechanism with a cell, and their list."""
        groups = grouped(self.lines, "mechanism")
        for group in groups:
            about = describe(group["key"])
            lines = [line for line in self.lines if line.mechanism == about.key]
            self.page("mechanism.html.j2", f"mechanisms/{about.key}.html", {
                "about": about, "cells": len(lines), "arena": in_arena(self.lines, about.key), "charted": True,
                "sections": sections([line for line in lines if line.table != ARENA], "../"),
            })  # fmt: skip
            sentence = re.split(r"(?<!\.)\. ", about.text)[0]
            group |= {"name": about.name, "text": sentence, "colour": about.colour}
            group["href"] = f"mechanisms/{about.key}.html"
        self.page("groups.html.j2", "mechanisms.html", {
            "title": "Mechanisms", "kind": "mechanism", "groups": groups,
            "lead": "Each mechanism everywhere: printed and measured, speed, memory, settings and deviations.",
        }, here="mechanisms")  # fmt: skip

    def datasets(self) -> None:
        """A page for each data set with a cell, and their list."""
        groups = grouped(self.lines, "task")
        for group in groups:
            name, facts = group["key"], task_facts(group["key"])
            lines = [line for line in self.lines if line.task == name]
            self.page("dataset.html.j2", f"datasets/{name}.html", {
                "name": name, "facts": {"what": ""} | facts, "cells": len(lines),
                "sections": sections(lines, "../" * (1 + name.count("/"))),
                "charted": True,
            })  # fmt: skip
            group |= {"name": name, "text": facts.get("what", ""), "colour": None, "href": f"datasets/{name}.html"}
        self.page("groups.html.j2", "datasets.html", {
            "title": "Data sets", "kind": "data set", "groups": groups,
            "lead": "Each data set with all mechanisms that were measured, or are printed, on it.",
        }, here="datasets")  # fmt: skip

    def overview(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The content of the first page."""
        content, shown = self.content, [part for table in self.content.tables for part in table.shown]
        kinds = by_kind(content.tables)
        arena = next((part for part in content.tables if part.table.name == ARENA), None)
        charts = scatters(arena, f"tables/{ARENA}.html") if arena else []
        charts = [chart for chart in charts if chart.title.startswith("ListOps")]
        return {
            "papers": self.papers(), "trained_counts": next((k["counts"] for k in kinds if k["kind"] == "trained"), []),
            "kinds": kinds, "cells_total": len(shown),
            "printed_total": sum(part.cell.printed is not None for part in shown), "tables_total": len(content.tables),
            "unavailable": sum(bool(part.cell.unavailable) for part in shown), "newest": rows[:6],
            "arena_chart": tall(max(charts, key=lambda chart: len(chart.spec["points"]))) if charts else None,
            "arena_href": f"tables/{ARENA}.html",
            "speed_chart": speed_chart(content.project_bench) if content.project_bench else None,
            "bench_href": "bench/project.html", "charted": True,
            "runs_total": len(rows), "own_total": len(content.own), "machines": content.machines,
            "project_total": len(content.project), "outdated": len(content.outdated),
            "failed": len(content.failed), "broken": len(content.broken), "unfinished": content.unfinished,
        }  # fmt: skip

    def papers(self) -> list[dict[str, Any]]:
        """Each paper with its tables."""
        groups: dict[str, list[TableResults]] = {}
        for part in self.content.tables:
            groups.setdefault(part.paper, []).append(part)
        return [self._paper(key, parts) for key, parts in groups.items()]

    def _paper(self, key: str, parts: Sequence[TableResults]) -> dict[str, Any]:
        authors, _, rest = parts[0].table.source.partition(", http")
        link = f"http{rest.split(',')[0]}" if rest else ""
        name = f"{key}: {authors}"
        lines = [line for line in self.lines if line.paper == key and line.group == "trained"]
        trained = [line for line in lines if line.part.cell.trained]
        order = list(MARKS)
        return {
            "key": key, "name": name, "link": link, "pair": (key, name), "trainable": len(trained),
            "trained": sorted((x for x in trained if x.measured), key=lambda line: order.index(line.verdict)),
            "tables": [
                {
                    "name": part.table.name, "title": part.table.title, "href": f"tables/{part.table.name}.html",
                    "cells": len(part.shown), "measured": sum(cell.verdict not in MISSING for cell in part.shown),
                    "counts": counts_of(cell.verdict for cell in part.shown),
                }
                for part in parts
            ],
        }  # fmt: skip


def by_kind(tables: Iterable[TableResults]) -> list[dict[str, Any]]:
    """Verdicts of trained, measured and stated cells apart, and those of own tables."""
    found: dict[str, list[Verdict]] = {group: [] for group in GROUPS}
    for table in tables:
        for part in table.shown:
            if not part.cell.unavailable:
                found[table.group(part)].append(part.verdict)
    return [
        {"kind": kind, "heading": GROUPS[kind], "cells": len(verdicts), "counts": counts_of(verdicts)}
        for kind, verdicts in found.items()
        if verdicts
    ]
