"""The folder of pages: overview, a page for each table and each run, the list of runs, figures and benchmarks."""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.report.html.bench_page import write_bench_page
from subquad.report.html.page import write_page, write_whole
from subquad.report.html.view_models import Cells, repeated_row, run_facts, run_row, table_facts
from subquad.report.markdown_latex import latex, markdown
from subquad.report.verdict_style import MARKS
from subquad.results.model import GROUPS, CellResults, Content, Run, TableResults
from subquad.results.repeats import repeats
from subquad.results.verdict import Verdict
from subquad.utils.atomic import atomic_write
from subquad.utils.display import as_typed

MANIFEST = ".pages.json"
"""Lists the files of the last call; files that a call does not write again are removed."""
SPEED_TABLES = ("dba/1", "dba/1_training")
"""Tables of measured time and memory."""
_MISSING = (Verdict.NOT_RUN, Verdict.NEEDS_DATA)


def write_site(folder: Path, content: Content) -> Path:
    """Writes all pages and returns the path of the first. Each appears whole, the first one last."""
    site = _Site(folder, content)
    for part in content.tables:
        site.page("table.html.j2", f"tables/{part.table.name}.html", table_facts(part, site.path))
        site.text(f"tables/{part.table.name}.md", markdown(part))
        site.text(f"tables/{part.table.name}.tex", latex(part))
    for run in (*content.runs, *content.project):
        site.page("run.html.j2", site.path(run), run_facts(run, site.cells))
    own = {run.key for run in content.own}
    rows = [run_row(run, site.cells, site.path) for run in reversed(content.runs)]
    site.page("costs.html.j2", "costs.html", {
        "benches": site.benches(), "pictures": site.pictures(), "project_bench": site.project_bench(),
        "speed_tables": [part.table for part in content.tables if part.table.name in SPEED_TABLES],
    }, here="costs")  # fmt: skip
    site.page("runs.html.j2", "runs.html", {
        "of_tables": [row for row in rows if row["key"] not in own], "own": [row for row in rows if row["key"] in own],
        "repeated": [repeated_row(line, site.path) for line in repeats(content.own)],
        "project": [run_row(run, site.cells, site.path) for run in reversed(content.project)],
        "outdated": content.outdated,
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
        self.cells = Cells(content.tables)
        scopes = sorted({run.scope for run in content.runs} | {s for part in content.tables for s in part.scopes})
        self.shared: dict[str, Any] = {
            "made": content.made, "scopes": scopes, "mark_of": MARKS,
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

    def project_bench(self) -> str:
        """The page of the benchmark that the project keeps; empty without one."""
        if (bench := self.content.project_bench) is None:
            return ""
        settings, name = bench["settings"], "bench/project.html"
        about = {
            "threads": bench["machine"]["threads"], "rounds": settings["rounds"], "layers": settings["layers"],
            "cuda": bench["machine"]["gpu"] is not None, "command": as_typed("python scripts/bench.py"),
        }  # fmt: skip
        write_bench_page(self.folder / name, bench["results"], {**bench, **about})
        self.written.add(name)
        return name

    def pictures(self) -> list[dict[str, str]]:
        """Figures, copied beside these pages."""
        found = []
        for path in self.content.pictures:
            [*_, paper, _, name] = path.parts
            found.append(self._copied(path, "figures", f"{paper}/{Path(name).stem}", ".png"))
        return found

    def _copied(self, source: Path, kind: str, name: str, suffix: str) -> dict[str, str]:
        plain = f"{kind}/{re.sub(r'[^A-Za-z0-9_.+-]', '-', name)}{suffix}"
        target = self.folder / plain
        with atomic_write(target, several=True) as place:
            shutil.copyfile(source, place)
        self.written.add(plain)
        return {"href": plain, "name": name}

    def overview(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The content of the first page."""
        content, shown = self.content, [part for table in self.content.tables for part in table.shown]
        return {
            "papers": self.papers(), "kinds": by_kind(content.tables), "cells_total": len(shown),
            "printed_total": sum(part.cell.printed is not None for part in shown), "tables_total": len(content.tables),
            "unavailable": sum(bool(part.cell.unavailable) for part in shown), "by_verdict": self._by_verdict(),
            "own_tables": measured_tables(content.tables, project=False),
            "project_tables": measured_tables(content.tables, project=True), "newest": rows[:12],
            "runs_total": len(rows), "own_total": len(content.own), "machines": content.machines,
            "project_total": len(content.project), "outdated": len(content.outdated),
            "failed": len(content.failed), "broken": len(content.broken), "unfinished": content.unfinished,
        }  # fmt: skip

    def papers(self) -> list[dict[str, Any]]:
        """Each paper with its tables."""
        groups: dict[str, list[TableResults]] = {}
        for part in self.content.tables:
            groups.setdefault(part.paper, []).append(part)
        return [_paper(key, parts) for key, parts in groups.items()]

    def _by_verdict(self) -> list[dict[str, Any]]:
        """Cells with a number, by verdict."""
        groups: dict[Verdict, list[dict[str, Any]]] = {}
        for table in self.content.tables:
            for part in table.shown:
                groups.setdefault(part.verdict, []).append(_line(table, part))
        return [
            {"mark": mark, "word": verdict.value, "cells": groups[verdict]}
            for verdict, mark in MARKS.items()
            if verdict in groups and verdict not in _MISSING
        ]


def counted(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """How many of each verdict, in the order of the legend."""
    counts = Counter(verdicts)
    return [{"mark": m, "word": v.value, "count": counts[v]} for v, m in MARKS.items() if counts[v]]


def measured_tables(tables: Iterable[TableResults], project: bool) -> list[dict[str, Any]]:
    """Tables with trained or measured cells whose number is of this machine, or of the project, and their verdicts."""
    found = []
    for table in tables:
        cells = [
            part
            for part in table.shown
            if part.verdict not in _MISSING and part.decisive.scope.project is project and table.kind(part) != "stated"
        ]
        if cells:
            found.append({
                "name": table.table.name, "title": table.table.title, "paper": table.paper,
                "href": f"tables/{table.table.name}.html", "counts": counted(part.verdict for part in cells),
                "cells": [_line(table, part) for part in cells if table.kind(part) == "trained"],
            })  # fmt: skip
    return found


def by_kind(tables: Iterable[TableResults]) -> list[dict[str, Any]]:
    """Verdicts of trained, measured and stated cells apart, and those of own tables."""
    found: dict[str, list[Verdict]] = {group: [] for group in GROUPS}
    for table in tables:
        for part in table.shown:
            found[table.group(part)].append(part.verdict)
    return [
        {"heading": GROUPS[kind], "cells": len(verdicts), "counts": counted(verdicts)}
        for kind, verdicts in found.items()
        if verdicts
    ]


def _line(table: TableResults, part: CellResults) -> dict[str, Any]:
    text = part.decisive.text
    name = f"{table.table.name}: {part.cell.row} / {part.cell.column}"
    printed = part.cell.printed.text if part.cell.printed else ""
    href = f"tables/{table.table.name}.html#{part.anchor}"
    verdict = {"mark": MARKS[part.verdict], "word": part.verdict.value}
    return {"paper": table.paper, "href": href, "name": name, "text": text, "printed": printed} | verdict


def _paper(key: str, parts: Sequence[TableResults]) -> dict[str, Any]:
    authors, _, rest = parts[0].table.source.partition(", http")
    link = f"http{rest.split(',')[0]}" if rest else ""
    name = f"{key}: {authors}"
    return {
        "key": key, "name": name, "link": link, "pair": (key, name),
        "kinds": by_kind(parts),
        "tables": [
            {
                "name": part.table.name, "title": part.table.title, "href": f"tables/{part.table.name}.html",
                "cells": len(part.shown), "counts": counted(cell.verdict for cell in part.shown),
                "sizes": ";".join(dict.fromkeys(scope.size for scope in part.scopes)),
                "protocols": ";".join(dict.fromkeys(scope.protocol for scope in part.scopes)),
                "elsewhere": [(scope, filled) for scope in part.scopes[1:] if (filled := part.filled(scope))],
                "command": part.command,
            }
            for part in parts
        ],
    }  # fmt: skip
