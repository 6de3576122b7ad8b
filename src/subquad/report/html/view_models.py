"""The content of the pages of tables and runs, as their templates read it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from subquad.config.mechanisms import mechanism_of
from subquad.config.task_metadata import task_of
from subquad.report.html.answers_view import answer_facts
from subquad.report.html.charts import cell_curves, comparisons, run_curves, scatters
from subquad.report.verdict_style import MARKS
from subquad.results.compare import against_reference
from subquad.results.model import FULL, PROJECT, CellResult, CellResults, Run, TableResults
from subquad.results.repeats import Repeats
from subquad.results.side_lines import side_lines
from subquad.results.statistics import Comparison
from subquad.results.table import Cell, Place
from subquad.utils.display import duration, metric_text, sizes

PageOf = Callable[[Run], str]
"""Where the page of a run is, below the folder of pages."""


class Cells:
    """Which cells a run fills, and which mechanisms and tasks have a page."""

    def __init__(self, tables: Sequence[TableResults]) -> None:
        self.known: dict[str, list[dict[str, str]]] = {}
        overrides = [cell.cell.overrides for table in tables for cell in table.shown]
        self.mechanisms, self.tasks = set(map(mechanism_of, overrides)), set(map(task_of, overrides))
        for table in tables:
            for part in table.cells.values():
                link = {
                    "name": f"{table.table.name} {part.cell.row} / {part.cell.column}", "paper": table.paper,
                    "href": f"tables/{table.table.name}.html#{part.anchor}",
                }  # fmt: skip
                for run in {run.key: run for result in part.results for run in result.runs}.values():
                    self.known.setdefault(run.key, []).append(link)

    def of(self, run: Run) -> list[dict[str, str]]:
        """Links to the cells of a run."""
        return self.known.get(run.key, [])

    def mechanism(self, run: Run) -> str:
        """The mechanism of a run, if it has a page."""
        named = mechanism_of((f"backbone={run.record.attention}", f"attention={run.record.attention}"))
        return named if named in self.mechanisms else ""


def table_facts(part: TableResults, path: PageOf, benches: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """For table.html.j2. benches: those that the project keeps."""
    table, beside = part.table, PROJECT in part.scopes
    columns = [column.name for column in table.columns]
    rows: list[dict[str, Any]] = [
        {
            "name": row.name, "href": _page_of(part, row=row.name), "own": row.name in table.added,
            "cells": [_cell(part, part.cells.get((row.name, column)), path, beside) for column in columns],
        }
        for row in table.rows
    ]  # fmt: skip
    cells = [cell for row in rows for cell in row["cells"] if cell is not None and not cell["empty"]]
    lines = side_lines(part, _counted)
    counts = part.counts()
    return {
        "name": table.name, "title": table.title, "source": table.source, "seeds": table.counts,
        "columns": [{"name": name, "href": _page_of(part, column=name)} for name in columns],
        "command": part.command, "scopes": part.scopes, "files": table.name.rpartition("/")[2],
        "counts": [{"mark": m, "word": v.value, "count": counts[v]} for v, m in MARKS.items() if counts[v]],
        "trained": any(cell.trained for cell in table),
        "side": list(lines.side),
        "foot": [(name, [texts.get(column, "") for column in columns]) for name, texts in lines.foot.items()],
        "rows": [row | {"side": [texts.get(row["name"], "") for texts in lines.side.values()]} for row in rows],
        "spread": any(value["spread"] for cell in cells for value in cell["known"]),
        "own": not beside,
        "flagged": any(cell["flags"] for cell in cells), "charted": True,
        "detail": [
            {"name": row.name, "cells": [_cell(part, p, path, beside, curves=True) for p in _row(part, row.name)]}
            for row in table.rows
        ],
        "charts": comparisons(part.shown),
        "printed": any(cell.printed for cell in table),
        "scatters": scatters(part), "reference": table.reference, "differences": list(_differences(part)),
        "answers": answer_facts(part, benches),
    }  # fmt: skip


def _counted(cell: CellResults) -> CellResult | None:
    """The result of a cell at the paper's scale that has scores without a model."""
    return next((r for r in map(cell.within, (FULL, PROJECT)) if r is not None and r.baselines), None)


def _differences(part: TableResults) -> Iterator[dict[str, Any]]:
    """For each scope with comparisons to the reference row: the compared columns and, by row, their texts."""
    for scope in part.scopes if part.table.reference else ():
        values = {place: result.values for place, result in part.within(scope).items()}
        found = against_reference(part.table, values)
        columns = [column.name for column in part.table.columns if any(place[1] == column.name for place in found)]
        rows = [
            {"name": row.name, "cells": [_difference(part.cells, found, (row.name, column)) for column in columns]}
            for row in part.table.rows
            if any(place[0] == row.name for place in found)
        ]
        if rows:
            yield {"scope": scope, "columns": columns, "rows": rows}


def _difference(
    cells: Mapping[Place, CellResults], comparisons: Mapping[Place, Comparison], place: Place
) -> dict[str, str] | None:
    if (found := comparisons.get(place)) is None:
        return None
    word = "better" if found.beats else "worse" if found.loses else ""
    difference, low, high = (
        f"{number:+.{cells[place].cell.digits}f}" for number in (found.difference, found.low, found.high)
    )
    return {"word": word, "difference": difference, "interval": f"{low} to {high}"}


def _page_of(part: TableResults, row: str | None = None, column: str | None = None) -> str:
    """The page of the mechanism or data set that all cells of a row or column share; empty if there is no one."""
    cells = [cell.cell for cell in part.shown if not cell.cell.mean]
    own = [cell for cell in cells if row in (None, cell.row) and column in (None, cell.column)]
    for folder, read in (("mechanisms", mechanism_of), ("datasets", task_of)):
        found = {read(cell.overrides) for cell in own}
        if len(found) == 1 and found != {""} and len({read(cell.overrides) for cell in cells}) > 1:
            return f"{folder}/{found.pop()}.html"
    return ""


def _row(part: TableResults, row: str) -> Iterator[CellResults]:
    return (p for (name, _), p in part.cells.items() if name == row and not p.empty)


def _cell(
    table: TableResults, part: CellResults | None, path: PageOf, beside: bool, curves: bool = False
) -> dict[str, Any] | None:
    """A cell. beside: whether the table has values of the project."""
    if part is None:
        return None
    cell = part.cell
    shown = [result for result in part.results if result.text or result.remarks] or [part.results[0]]
    printed = cell.printed
    flags = (
        ["quoted from elsewhere"] * cell.from_prior_work + [*cell.notes] + ["cannot be filled"] * bool(cell.unavailable)
    )
    return {
        "anchor": part.anchor, "column": cell.column, "empty": part.empty, "notes": cell.notes,
        "from_prior_work": cell.from_prior_work, "unavailable": cell.unavailable,
        "printed": printed.text.partition("±")[0] if printed else "", "unit": cell.metric.unit,
        "printed_spread": None if printed is None or printed.value is None else printed.text.partition("±")[2],
        "flags": " ".join(flags), "mechanism": mechanism_of(cell.overrides), "task": task_of(cell.overrides),
        "command": part.command, "missing_data": part.results[0].missing_data,
        "hidden": cell.column not in {column.name for column in table.table.columns},
        "parts": [{"name": " / ".join(p), "anchor": table.cells[p].anchor} for p in cell.mean],
        "known": [_result(cell, result, path, curves) | {"tag": _tag(result, shown, beside)} for result in shown],
    }  # fmt: skip


def _tag(result: CellResult, shown: Sequence[CellResult], beside: bool) -> str:
    """What distinguishes a number from others of its table; nothing for the paper's scale, if it is alone."""
    if not result.text or (result.scope == PROJECT and not any(r.scope == FULL and r.text for r in shown)):
        return ""
    if result.scope == FULL:
        return "yours" if beside else ""
    return result.scope.label.replace(PROJECT.label, "project")


def _result(cell: Cell, result: CellResult, path: PageOf, curves: bool) -> dict[str, Any]:
    return {
        "scope": result.scope, "verdict": result.verdict, "text": result.text,
        "mean": result.text.partition(" ± ")[0] if result.summary else "", "spread": result.text.partition(" ± ")[2],
        "interval": _interval(cell, result), "count": _count_of(result), "measurement": result.measurement,
        "remarks": [remark for remark in result.remarks if remark != result.measurement.get("note")],
        "baselines": [(name, _digits(cell, score)) for name, score in result.baselines.items()],
        "seeds": [
            {
                "seed": run.record.seed, "href": path(run),
                "score": _digits(cell, result.values[run.record.seed]) if run.record.seed in result.values else "",
            }
            for run in result.runs
        ],
        "curves": cell_curves(result.runs) if curves else None,
    }  # fmt: skip


def _interval(cell: Cell, result: CellResult) -> str:
    """The 95 % interval of the mean; empty for a single result."""
    if result.summary is None or result.summary.half_width is None:
        return ""
    low, high = (result.summary.mean + sign * result.summary.half_width for sign in (-1, 1))
    return f"{_digits(cell, low)} to {_digits(cell, high)}"


def _count_of(result: CellResult) -> str:
    """The number of seeds; empty for a value without seeds."""
    if result.summary is None or result.measurement:
        return ""
    return f"{result.summary.seeds} seed{'s' if result.summary.seeds > 1 else ''}"


def _digits(cell: Cell, number: float) -> str:
    return f"{number:.{cell.digits}f}"


def run_row(run: Run, cells: Cells, path: PageOf) -> dict[str, Any]:
    """For lists of runs: `columns` are texts by their heading; one that begins with "<" is aligned to the left."""
    record, links = run.record, cells.of(run)
    columns = {
        "score": _score(run), "seed": record.seed, "<scale, protocol": f"{run.scope.size}, {run.scope.protocol}",
        "steps": _count(record.steps), "duration": _duration(record.wall_seconds),
        "finished": str(record.finished)[:16].replace("T", " "),
    }  # fmt: skip
    return {
        "key": run.key, "path": path(run), "attention": record.attention, "task": record.task, "columns": columns,
        "scope": run.scope, "cells": links[:3], "papers": ";".join(dict.fromkeys(link["paper"] for link in links)),
    }  # fmt: skip


def repeated_row(line: Repeats, path: PageOf) -> dict[str, Any]:
    """For the list of configurations, each with its runs."""
    record = line.runs[0].record
    return {
        "name": f"{record.attention} on {record.task}", "settings": line.settings, "score": line.score,
        "scope": line.runs[0].scope, "seeds": [{"seed": run.record.seed, "href": path(run)} for run in line.runs],
        "parameters": _count(record.parameters), "duration": _duration(line.seconds),
    }  # fmt: skip


def run_facts(run: Run, cells: Cells) -> dict[str, Any]:
    """For run.html.j2."""
    import yaml

    record = run.record
    facts = {
        "protocol, scale": f"{record.protocol}, {run.scope.size}", "recipe": record.recipe, "seed": record.seed,
        "rows": sizes(record.rows),
        "parameters": _count(record.parameters), "steps": _count(record.steps),
        "duration": _duration(record.wall_seconds),
        "peak memory": f"{_count(record.peak_memory_mib)} MiB ({record.peak_memory_of})", "finished": record.finished,
        "machine": ", ".join(f"{name} {value}" for name, value in record.machine.items() if value is not None),
        "versions": ", ".join(f"{name} {value}" for name, value in record.versions.items()), "commit": record.commit,
        "fingerprint": record.fingerprint, "data": record.data_fingerprint,
        "folder": "" if run.project else f"runs/{run.key}",
        "tags": ", ".join(map(str, record.tags)) if isinstance(record.tags, list) else record.tags,
    }  # fmt: skip
    return {
        "run": {
            "attention": record.attention, "task": record.task, "seed": record.seed, "cells": cells.of(run),
            "mechanism": cells.mechanism(run), "known_task": record.task in cells.tasks,
        },
        "charted": True,
        "scope": run.scope, "command": run.command, "charts": run_curves(run),
        "metrics": [(name, metric_text(name, record.metrics[name])) for name in sorted(record.metrics)],
        "baselines": [(name, metric_text(run.monitor, score)) for name, score in record.baselines.items()],
        "facts": [(name, value) for name, value in facts.items() if value not in ("", None)],
        "config": yaml.dump(_plain(record.config), Dumper=_dumper(), sort_keys=False, allow_unicode=True),
    }  # fmt: skip


def _dumper() -> Any:
    """The one in C is ten times as fast, and not in every build of PyYAML."""
    import yaml

    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _score(run: Run) -> str:
    name = f"test/{run.monitor}"
    return metric_text(name, run.record.metrics[name]) if name in run.record.metrics else "—"


def _count(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _duration(seconds: Any) -> str:
    if not isinstance(seconds, int | float):
        return str(seconds)
    return duration(seconds)
