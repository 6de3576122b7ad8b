"""Reports in Weights & Biases as code: a table with the learning curves of its runs, and the overview of all tables."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subquad.config.compose import compose_run
from subquad.records import write_json
from subquad.report.markdown_latex import markdown
from subquad.report.project_page import verdict_counts
from subquad.results.model import FULL, PROJECT, Scope, TableResults
from subquad.results.verdict import Verdict
from subquad.training.wandb_run import setting_name
from subquad.utils.errors import UserError, first_line

STEPS = "trainer/global_step"
"""The name of optimiser steps in Lightning's logger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a report is sent: `logger.wandb.project` and `entity`; no entity is the account's own."""

    project: str
    entity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A task of a table, as the tags of its runs have it, and the metric that picks their best epoch: accuracy."""

    task: str
    monitor: str


def shown_tasks(results: TableResults, scope: Scope) -> list[Shown]:
    """The tasks that the runs of a table train, in its order."""
    found: dict[tuple[str, ...], Shown] = {}
    for cell in results.table:
        chosen = tuple(override for override in cell.overrides if override.startswith(("task=", "experiment=")))
        if cell.trained and chosen not in found:
            config = compose_run([*cell.overrides, *scope.choices])
            found[chosen] = Shown(task=str(config.task.name), monitor=str(config.task.monitor).rpartition("/")[2])
    return list(dict.fromkeys(found.values()))


def report(results: TableResults, scope: Scope, tasks: Sequence[Shown], target: Target, made: str) -> Any:
    """The report of a table in one scope, a `Report` of wandb-workspaces: nothing is looked up or sent.

    Its title has no slash, because the address of a report is made of it.
    """
    import wandb_workspaces.reports.v2 as wr

    name = results.table.name.replace("/", " ")
    blocks = [wr.MarkdownBlock(markdown(results, scope)), wr.MarkdownBlock(_words(results, scope, made))]
    if lines := _lines(results, scope):
        blocks += [wr.H2("Which curve is which cell"), wr.MarkdownBlock(lines)]
    if tasks:
        blocks += [wr.H2("Learning curves")]
    for task in tasks:
        blocks += [wr.H3(task.task), _curves(results, scope, task)]
    return wr.Report(
        project=target.project, entity=target.entity or "", blocks=blocks, width="fluid",
        title=f"Subquad {name}{f' ({scope.label})' if scope.label else ''}",
        description=f"{results.table.title}. {results.table.source}",
    )  # fmt: skip


def overview(tables: Sequence[TableResults], target: Target, made: str) -> Any:
    """The report of all tables: how many cells have which verdict, and every table that has a value of full scale."""
    import wandb_workspaces.reports.v2 as wr

    blocks = [wr.MarkdownBlock(f"{verdict_counts(tables)}\n\nMade {made}.")]
    for table in tables:
        scopes = [scope for scope in (FULL, PROJECT) if table.filled(scope)]
        if scopes:
            text = "\n".join(markdown(table, scope) for scope in scopes)
            blocks += [wr.H2(table.table.name), wr.MarkdownBlock(text)]
    return wr.Report(
        project=target.project, entity=target.entity or "", blocks=blocks, width="fluid", title="Subquad overview",
        description="Every table beside the printed numbers: results of this machine, and those of the project.",
    )  # fmt: skip


def write(report: Any, path: Path) -> None:
    """Keeps what would be sent, as JSON."""
    write_json(path, report._to_model().model_dump(mode="json", by_alias=True, exclude_none=True))


def send(report: Any) -> str:
    """Makes the report, or renews the one with its title in the same project; returns its address.

    Raises UserError if there is no account or no network.
    """
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")  # the caller prints the address
    try:
        api = wandb.Api()
        report.entity = report.entity or api.default_entity
        same = [known for known in _reports(api, report) if known.display_name == report.title]
        if same:
            report.id = same[0].id
        return str(report.save().url)
    except Exception as error:  # the package raises plain exceptions too
        raise UserError(
            f"Weights & Biases did not take the report ({first_line(error).rstrip('.')}); check the network, "
            "`wandb login` and logger.wandb.entity, and type the same command again."
        ) from error


def _reports(api: Any, report: Any) -> list[Any]:
    """The reports of the project; none if the project does not exist yet."""
    try:
        return list(api.reports(f"{report.entity}/{report.project}"))
    except ValueError:
        return []


def _words(results: TableResults, scope: Scope, made: str) -> str:
    """How the table stands, when that was, and what fills it."""
    values = [cell.within(scope) for cell in results.shown]
    counts = Counter(Verdict.NOT_RUN if value is None else value.verdict for value in values)
    stands = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    command = " ".join([results.command, *scope.choices, "logger=wandb"])
    return (
        f"{len(results.shown)} cells: {stands}. Made {made} from the records of one machine; the curves below "
        f"are of all runs of the project.\n\n```\n{command}\n```\n"
    )


def _lines(results: TableResults, scope: Scope) -> str:
    """A table of cells with runs and the names of their curves; empty if there are none."""
    rows = []
    for place, cell in results.cells.items():
        value = cell.within(scope)
        for run in value.runs[:1] if value else ():
            seeds = ", ".join(map(str, sorted(run.record.seed for run in value.runs)))  # type: ignore[union-attr]
            name = setting_name(run.record.attention, run.record.fingerprint)
            rows.append(f"| {' | '.join(text.replace('|', '/') for text in place)} | `{name}` | {seeds} |")
    return "\n".join(["| row | column | curve | seeds |", "|---|---|---|---|", *rows]) + "\n" if rows else ""


def _curves(results: TableResults, scope: Scope, task: Shown) -> Any:
    """Losses and the metric of one task by steps, the mean over seeds of each setting, and the test metric as bars."""
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces import expr

    tags = [f"table:{results.table.name}", task.task, f"scale:{scope.scale}", f"protocol:{scope.protocol}"]
    runs = wr.Runset(
        name=task.task, groupby=["config.choice.setting"],
        filters=expr.And(*(expr.Tags().isin([tag]) for tag in tags), expr.Metric("JobType") == "train"),
    )  # fmt: skip
    logged = list(dict.fromkeys(["train/loss", "val/loss", f"val/{task.monitor}"]))
    panels = [
        wr.LinePlot(title=name, x=STEPS, y=[name], title_x="optimiser steps", groupby_aggfunc="mean") for name in logged
    ]
    test = f"test/{task.monitor}"
    bars = wr.BarPlot(title=test, metrics=[wr.SummaryMetric(test)], groupby_aggfunc="mean", groupby_rangefunc="stddev")
    for place, panel in enumerate([*panels, bars]):
        panel.layout = wr.Layout(x=12 * (place % 2), y=8 * (place // 2), w=12, h=8)
    return wr.PanelGrid(runsets=[runs], panels=[*panels, bars])
