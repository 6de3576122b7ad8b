"""What the project has measured (docs/results), as the page docs/results.md and as the table of the README."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from subquad.report.markdown_latex import markdown
from subquad.results.model import KINDS, PROJECT, CellResult, Run, TableResults

_HEAD = """# Results

Written by `make docs` from [docs/results](contributing-results.md); a test compares the two. `subquad report` shows
the same numbers beside your own. Cells show the measured value, the printed one in brackets, and the verdict
([report.md](report.md) says what it means). Rows and columns without a measured value are left out."""


def page(tables: Sequence[TableResults], runs: Iterable[Run]) -> str:
    """The page: a summary, every table with a result, and the runs that belong to no table."""
    used = {run.key for table in tables for result in _results(table) for run in result.runs}
    others = [run for run in runs if run.key not in used]
    parts = [_HEAD, _summary(tables), *(_section(table) for table in tables), _others(others)]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(tables: Iterable[TableResults]) -> str:
    """Trained cells at full scale, one line for each row of a table, as a table of Markdown."""
    lines = ["| table | row | measured (printed) |", "|---|---|---|"]
    for table in tables:
        for row in table.table.rows:
            cells = [
                f"{cell.cell.column} {result.text} ({cell.cell.printed.text if cell.cell.printed else '—'})"
                for cell in table.shown
                if cell.cell.row == row.name and table.kind(cell) == "trained" and (result := cell.within(PROJECT))
            ]
            if cells:
                lines.append(f"| {table.table.name} | {row.name} | {' · '.join(cells)} |")
    return "\n".join(lines)


def _results(table: TableResults) -> list[CellResult]:
    return [result for cell in table.shown for result in cell.results if result.text]


def _summary(tables: Iterable[TableResults]) -> str:
    """How many cells of each kind have which verdict."""
    lines = ["| | measured cells | verdicts |", "|---|---:|---|"]
    for kind, heading in KINDS.items():
        verdicts = Counter(
            result.verdict.value
            for table in tables
            for cell in table.shown
            if table.kind(cell) == kind and (result := cell.within(PROJECT)) and result.text
        )
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        lines.append(f"| {heading} | {verdicts.total()} | {counts} |")
    return "\n".join(lines)


def _section(table: TableResults) -> str:
    scopes = [scope for scope in table.scopes if scope.project and table.filled(scope)]
    return "\n\n".join([
        f"## {table.table.name}", f"```bash\n{table.command}\n```",
        *(markdown(table, scope).rstrip() for scope in scopes), _measured_on(_results(table)),
    ])  # fmt: skip


def _measured_on(results: Iterable[CellResult]) -> str:
    """The machines, versions and commits of results, and the time of their runs."""
    runs = {run.key: run for result in results for run in result.runs}
    facts = [result.measurement for result in results if result.measurement]
    machines = {_machine(run) for run in runs.values()} | {fact["machine"] for fact in facts}
    versions = {run.record.versions.get("torch", "") for run in runs.values()} | {fact["torch"] for fact in facts}
    commits = {run.record.commit for run in runs.values()} | {fact["commit"] for fact in facts}
    trained = timedelta(seconds=round(sum(run.record.wall_seconds for run in runs.values())))
    spent = f"{len(runs)} runs took {trained} in all; " if runs else ""
    return f"Measured on {_list(machines)}; {spent}torch {_list(versions)}; commits {_list(commits)}."


def _others(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    lines = ["## Other runs", "", "| command | result | without a model | time |", "|---|---|---|---:|"]
    for run in runs:
        metric = f"test/{run.monitor}"
        baselines = ", ".join(f"{name} {score:.4f}" for name, score in run.record.baselines.items())
        time = timedelta(seconds=round(run.record.wall_seconds))
        lines.append(f"| `{run.command}` | {metric} {run.record.metrics[metric]:.4f} | {baselines} | {time} |")
    return "\n".join(lines)


def _machine(run: Run) -> str:
    return str(run.record.machine.get("gpu") or run.record.machine.get("cpu") or "")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(filter(None, names)))
