"""Runs and tables in Weights & Biases. Nothing of it changes a run, and nothing is read back."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from subquad.config.compose import compose_run
from subquad.records import fingerprint
from subquad.results.cells import RunSpec
from subquad.results.model import PROJECT, Scope, TableResults
from subquad.training.wandb_run import quieten

COLUMNS = (
    "row", "column", "mean", "std", "half width (95 %)", "seeds", "printed", "printed value", "printed spread", "unit",
    "better", "verdict", "notes", PROJECT.label, "its verdict",
)  # fmt: skip


def is_chosen(choices: Sequence[str]) -> bool:
    """Whether overrides of the command line choose Weights & Biases."""
    return any(override == "logger=wandb" for override in choices)


def labels(*tables: str) -> tuple[str, ...]:
    """Overrides that group the runs of tables, and tag them with those and their papers."""
    papers = dict.fromkeys(table.partition("/")[0] for table in tables)
    tags = [*(f"table:{table}" for table in tables), *(f"paper:{paper}" for paper in papers)]
    return (f"logger.wandb.group={tables[0] if len(tables) == 1 else 'several'}", f"tags=[{','.join(tags)}]")


def labelled(runs: Iterable[RunSpec], tables: Mapping[str, Iterable[RunSpec]]) -> list[RunSpec]:
    """The same runs, each in the group and with the tags of the tables whose cells it fills, or others start from."""
    needed: dict[Path, list[str]] = {}
    for name, own in tables.items():
        for folder in {f for run in own for f in (run.folder, *([run.init_from.folder] if run.init_from else []))}:
            needed.setdefault(folder, []).append(name)
    return [dataclasses.replace(run, overrides=(*run.overrides, *labels(*needed[run.folder]))) for run in runs]


def log_table(results: TableResults, scope: Scope, choices: Sequence[str]) -> Path:
    """Logs the table as a run of its own, which the same cells at the same choices update; returns its folder.

    `logger.wandb` has the project, the entity, and whether it is sent at once.
    """
    import wandb

    table = results.table
    config = compose_run(choices)
    logger: Any = OmegaConf.to_container(config.logger.wandb, resolve=True)
    quieten({"wandb": logger})
    paper = table.name.partition("/")[0]
    selection = {"overrides": sorted(choices), "cells": sorted(map(str, table.cells))}
    folder = Path(str(config.paths.outputs)) / "tables" / table.name
    folder.mkdir(parents=True, exist_ok=True)
    rows = table_rows(results, scope)
    run = wandb.init(
        project=logger["project"], entity=logger.get("entity"), dir=str(folder),
        id=f"table-{re.sub(r'[^a-zA-Z0-9]', '-', table.name)}-{fingerprint(selection)}",
        name=f"table {table.name} · {config.scale} · {config.protocol}", group=table.name, job_type="table",
        tags=[f"paper:{paper}", f"table:{table.name}", f"protocol:{config.protocol}", f"scale:{config.scale}"],
        config={"table": table.name, "title": table.title, "source": table.source, "overrides": list(choices)},
        mode="offline" if logger["offline"] else "online", resume="allow",
    )  # fmt: skip
    run.log({"table": wandb.Table(columns=list(COLUMNS), data=rows)})
    counts = Counter(row[COLUMNS.index("verdict")] for row in rows)
    run.summary.update({f"cells/{verdict}": count for verdict, count in counts.items()})
    run.finish()
    return folder


def table_rows(results: TableResults, scope: Scope) -> list[list[Any]]:
    """A list for each printed cell in the order of COLUMNS; None where there is no number."""
    rows = []
    project = results.within(dataclasses.replace(scope, project=True))
    for place, result in results.within(scope).items():
        cell, summary = results.table.cells[place], result.summary
        if cell.column not in {column.name for column in results.table.columns}:
            continue
        numbers = (None, None, None) if summary is None else (summary.mean, summary.std, summary.half_width)
        printed = (
            ("", None, None) if cell.printed is None else (cell.printed.text, cell.printed.value, cell.printed.spread)
        )
        remarks = "; ".join(text for text in (*cell.notes, cell.unavailable, result.missing_data) if text)
        unit, better = cell.metric.unit, cell.metric.better
        kept = project.get(place)
        by_project = (None, "") if kept is None or kept.summary is None else (kept.summary.mean, kept.verdict.value)
        rows.append(
            [*place, *numbers, len(result.values), *printed, unit, better, result.verdict.value, remarks, *by_project]
        )
    return rows
