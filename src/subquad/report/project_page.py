"""What the project has measured (docs/results), as the page docs/results.md and as the table of the README."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from subquad.measure.growth import DOES_NOT_FIT, NO_ATTENTION
from subquad.measure.speed_plot import draw_speed
from subquad.report.html.bench_page import EXPLICIT, SOFTMAX
from subquad.report.markdown_latex import markdown, printed_text
from subquad.results.benches import bench_device, bench_times
from subquad.results.cell_results import mixed_precisions
from subquad.results.model import FULL, GROUPS, PROJECT, CellResult, CellResults, Run, Scope, TableResults
from subquad.results.verdict import Verdict
from subquad.utils.display import counted

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
    """The page: a summary of all tables, those with a result, the runs that belong to no table, and the benchmarks."""
    filled = [table for table in tables if _results(table)]
    used = {run.key for table in filled for result in _results(table) for run in result.runs}
    others = [run for run in runs if run.key not in used]
    parts = [
        _HEAD,
        f"{verdict_counts(tables, [PROJECT])}\n\n{_trained(tables)}",
        *(_section(table) for table in filled),
        _others(others),
        _HOW_FAST,
        *map(_speed, benches),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(tables: Iterable[TableResults]) -> str:
    """Trained cells with a printed value, at full scale, one line for each row of a table, as a table of Markdown.

    Cells with the same runs, such as two printed values of one mechanism, are one entry.
    """
    lines = []
    for table in tables:
        for row in table.table.rows:
            entries: dict[tuple[str, ...], list[tuple[CellResults, CellResult]]] = {}
            for cell in table.shown:
                wanted = cell.cell.row == row.name and printed_text(cell) and table.kind(cell) == "trained"
                if wanted and (result := _filled(cell)):
                    key = tuple(run.key for run in result.runs) or cell.cell.place
                    entries.setdefault(key, []).append((cell, result))
            if entries:
                lines.append(f"| {table.table.name} | {row.name} | {' · '.join(map(_entry, entries.values()))} |")
    if not lines:
        return "No cell of a table has been trained at the papers' scale yet."
    return "\n".join(["| table | row | measured (printed) |", "|---|---|---|", *lines])


def _entry(cells: Sequence[tuple[CellResults, CellResult]]) -> str:
    """A measured value with each value that is printed for it."""
    first, result = cells[0]
    printed = [f"{'quoted ' * cell.cell.from_prior_work}{printed_text(cell)}" for cell, _ in cells]
    shown = printed if len(printed) > 1 else [printed_text(first)]
    mixed = "".join(f", in {precision}" for precision in mixed_precisions(result.runs))
    return f"{first.cell.column} {result.text}{_seeds(result, first.cell.seeds)}{mixed} ({', '.join(shown)})"


def counts(tables: Sequence[TableResults]) -> str:
    """How many cells of each group the project has filled, as a paragraph for the README."""
    found = {
        group: [cell for table in tables for cell in table.shown if table.group(cell) == group] for group in GROUPS
    }
    filled = {group: [result for cell in cells if (result := _filled(cell))] for group, cells in found.items()}
    costs = sum(not cell.cell.unavailable for cell in found["measured"])
    agree = sum(result.verdict is Verdict.AS_PRINTED for result in filled["stated"])
    own = Counter(cell.cell.metric.name.partition("/")[0] for cell in found["own trained"] if _filled(cell))
    return (
        f"{_trained(tables)}\nCounted apart: {len(filled['measured']):,} of {costs:,} costs in these tables, counted "
        f"or measured; {agree:,} of {len(filled['stated']):,} printed settings and constants that agree with this "
        f"code's, which is no reproduction;\n{own['test']:,} trained and "
        f"{len(filled['own measured']):,} measured cells of the arena, and {counted(own['val'], 'validation score')} "
        "of the search of its rates; no paper prints them."
    )


def _filled(cell: CellResults) -> CellResult | None:
    """The project's result of a cell, if it has a value."""
    result = cell.within(PROJECT)
    return result if result and result.text else None


def _trained(tables: Iterable[TableResults], seeds: int = 5) -> str:
    """How many trained cells of the papers there are, without means over cells, and how many have so many seeds."""
    cells = [cell for table in tables for cell in table.shown if table.group(cell) == "trained" and cell.cell.trained]
    results = [result for cell in cells if (result := _filled(cell))]
    settings = {tuple(run.key for run in result.runs) for result in results}
    enough = sum(len(result.values) >= seeds for result in results)
    mixed = sum(bool(mixed_precisions(result.runs)) for result in results)
    of_mixed = f", {mixed:,} in mixed precision" if mixed else ""
    return (
        f"Of {len(cells):,} cells of the five papers' tables that are results of training (means over tasks left out), "
        f"{len(results):,} have been trained with this code at the papers' scale (by {len(settings):,} settings: some "
        f"are printed twice), {enough:,} of them with {seeds} seeds{of_mixed}."
    )


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
    draw_speed(bench_times(bench["results"]), NO_ATTENTION, "", path)


def _model(bench: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in bench["results"] if (row["level"], row["mode"]) == ("model", "inference")]


def _speed(bench: Mapping[str, Any]) -> str:
    """Times of the whole model, and its speed as a share of the speed without attention, by length."""
    lengths, rows, machine = bench["settings"]["lengths"], _model(bench), bench["machine"]
    by = bench_times(rows)
    lines = [f"| | {' | '.join(f'{n:,} tokens' for n in lengths)} |", f"|---|{'---:|' * len(lengths)}"]
    for name in dict.fromkeys(row["attention"] for row in rows):
        shares = (
            f"{by[name][n]:.1f} ms, {by[NO_ATTENTION][n] / by[name][n]:.0%}" if n in by.get(name, ()) else DOES_NOT_FIT
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


def verdict_counts(tables: Sequence[TableResults], scopes: Sequence[Scope] = (FULL, PROJECT)) -> str:
    """How many cells of each group have which verdict, each by its result in the first scope that has one."""
    lines = ["| | cells with a value | of | verdicts |", "|---|---:|---:|---|"]
    for group, heading in GROUPS.items():
        if not (cells := [cell for table in tables for cell in table.shown if table.group(cell) == group]):
            continue
        found = [[r for r in map(cell.within, scopes) if r and r.text] for cell in cells]
        verdicts = Counter(results[0].verdict.value for results in found if results)
        said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        fillable = sum(not cell.cell.unavailable for cell in cells)
        lines.append(f"| {heading} | {verdicts.total():,} | {fillable:,} | {said} |")
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
    spent = f"{counted(len(runs), 'run')} took {trained} in all; " if runs else ""
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
