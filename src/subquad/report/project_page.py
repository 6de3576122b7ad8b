"""What the project has measured (docs/results), as the page docs/results.md and as the table of the README."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from subquad.measure.benchmark import DOES_NOT_FIT, NO_ATTENTION
from subquad.measure.speed_plot import draw_speed
from subquad.report.html.bench_page import EXPLICIT, SOFTMAX
from subquad.report.markdown_latex import markdown, printed_text
from subquad.results.model import KINDS, PROJECT, CellResult, Run, TableResults
from subquad.results.store import bench_device
from subquad.results.verdict import Verdict

_HEAD = """# Results

Written by `make docs` from [docs/results](contributing-results.md); a test compares the two. `subquad report` shows
the same numbers beside your own. Cells show the measured value, the printed one in brackets, and the verdict
([report.md](report.md) says what it means). Rows and columns without a measured value are left out."""


_HOW_FAST = """## Speed

```bash
make bench
```

One forward pass of the whole model, and its speed as a share of the speed of the model without attention."""


def results_page(tables: Sequence[TableResults], runs: Iterable[Run], benches: Sequence[Mapping[str, Any]]) -> str:
    """The page: a summary, every table with a result, the runs that belong to no table, and the benchmarks."""
    used = {run.key for table in tables for result in _results(table) for run in result.runs}
    others = [run for run in runs if run.key not in used]
    parts = [
        _HEAD,
        _summary(tables),
        *(_section(table) for table in tables),
        _others(others),
        _HOW_FAST,
        *map(_speed, benches),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(tables: Iterable[TableResults]) -> str:
    """Trained cells with a printed value, at full scale, one line for each row of a table, as a table of Markdown."""
    lines = []
    for table in tables:
        for row in table.table.rows:
            cells = [
                f"{cell.cell.column} {result.text}{_seeds(result, cell.cell.seeds)} ({printed_text(cell)})"
                for cell in table.shown
                if cell.cell.row == row.name and printed_text(cell) and table.kind(cell) == "trained"
                if (result := cell.within(PROJECT))
            ]
            if cells:
                lines.append(f"| {table.table.name} | {row.name} | {' · '.join(cells)} |")
    if not lines:
        return "No cell of a table has been trained at the papers' scale yet."
    return "\n".join(["| table | row | measured (printed) |", "|---|---|---|", *lines])


def _seeds(result: CellResult, declared: int) -> str:
    return f", {len(result.values)} of {declared} seeds" if result.verdict is Verdict.INCOMPLETE else ""


def caption(benches: Sequence[Mapping[str, Any]]) -> str:
    """What the README says of its picture, which is the first benchmark's, and a line for each other one."""
    bench, *others = benches
    settings, machine, longest = bench["settings"], bench["machine"], max(bench["settings"]["lengths"])
    times = {row["attention"]: 1e3 * row["median_s"] for row in _model(bench) if row["length"] == longest}
    return (
        f"*One forward pass of a {settings['layers']}-layer model (d={settings['dims'][0]}, {settings['heads']} heads, "
        f"batch {settings['batches'][0]}, {settings['dtypes'][0]}, {machine['threads']} threads of {machine['cpu']}). "
        "The dashed line is the same model with its attention\nremoved: nothing can be faster. "
        f"At {longest:,} tokens: DBA {times['dba']:.0f} ms, softmax through a fused kernel "
        f"{times[SOFTMAX]:.0f}, written out {times[EXPLICIT]:.0f}, no attention {times[NO_ATTENTION]:.0f}.\n"
        f"{''.join(map(_beside_softmax, others))}`make bench` measures it on your machine.*"
    )


def _beside_softmax(bench: Mapping[str, Any]) -> str:
    """The times of DBA and softmax at the smallest and the greatest length, as a line of the README."""
    by = {(row["attention"], row["length"]): row for row in _model(bench)}
    lengths = bench["settings"]["lengths"]
    times = (
        f"at {n:,} tokens DBA {1e3 * by['dba', n]['median_s']:.2f} ms, softmax {1e3 * by[SOFTMAX, n]['median_s']:.2f} "
        f"({by['dba', n]['speedup_over_softmax']:.2f} times as fast)"
        for n in dict.fromkeys((min(lengths), max(lengths)))
    )
    return f"On one {bench_device(bench)} ({_size(bench)}): {'; '.join(times)}.\n"


def _size(bench: Mapping[str, Any]) -> str:
    settings = bench["settings"]
    return (
        f"{settings['layers']} layers, d={settings['dims'][0]}, {settings['heads']} heads, "
        f"batch {settings['batches'][0]}, {settings['dtypes'][0]}"
    )


def draw(bench: Mapping[str, Any], path: Path) -> None:
    """Draws the times of the whole model as the picture of the README."""
    lines: dict[str, dict[int, float]] = {}
    for row in _model(bench):
        if "median_s" in row:
            lines.setdefault(row["attention"], {})[row["length"]] = 1e3 * row["median_s"]
    draw_speed(lines, NO_ATTENTION, "", path)


def _model(bench: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in bench["results"] if (row["level"], row["mode"]) == ("model", "inference")]


def _speed(bench: Mapping[str, Any]) -> str:
    """Times of the whole model, and its speed as a share of the speed without attention, by length."""
    lengths, rows, machine = bench["settings"]["lengths"], _model(bench), bench["machine"]
    by = {(row["attention"], row["length"]): row["median_s"] for row in rows if "median_s" in row}
    lines = [f"| | {' | '.join(f'{n:,} tokens' for n in lengths)} |", f"|---|{'---:|' * len(lengths)}"]
    for name in dict.fromkeys(row["attention"] for row in rows):
        shares = (
            f"{1e3 * by[name, n]:.1f} ms, {by[NO_ATTENTION, n] / by[name, n]:.0%}" if (name, n) in by else DOES_NOT_FIT
            for n in lengths
        )
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(shares)} |")
    return "\n\n".join([
        f"### {bench_device(bench)}",
        f"{_size(bench)}; medians of {bench['settings']['rounds']} rounds.",
        "\n".join(lines),
        f"Measured with {machine['threads']} threads of {machine['cpu']}; torch {bench['versions']['torch']}; "
        f"commits {bench['commit']}.",
    ])  # fmt: skip


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
