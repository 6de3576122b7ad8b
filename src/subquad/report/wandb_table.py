"""Runs and tables in Weights & Biases. Nothing of it belongs to what a run is, and nothing is read back from it."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from subquad.config.compose import compose_run
from subquad.records import fingerprint
from subquad.report.terminal import Values
from subquad.results.cells import Job
from subquad.results.statistics import summarise
from subquad.results.table import Place, Table
from subquad.results.verdict import cell_verdict

COLUMNS = (
    "row", "column", "mean", "std", "half width (95 %)", "seeds", "printed", "printed value", "printed spread", "unit",
    "better", "verdict", "notes",
)  # fmt: skip


def asked(choices: Sequence[str]) -> bool:
    """Whether words of the command line choose Weights & Biases."""
    return any(word == "logger=wandb" for word in choices)


def labels(*tables: str) -> tuple[str, ...]:
    """Words that group the runs of tables, and tag them with those and their papers."""
    papers = dict.fromkeys(table.partition("/")[0] for table in tables)
    tags = [*(f"table:{table}" for table in tables), *(f"paper:{paper}" for paper in papers)]
    return (f"logger.wandb.group={tables[0] if len(tables) == 1 else 'several'}", f"tags=[{','.join(tags)}]")


def labelled(jobs: Iterable[Job], tables: Mapping[str, Iterable[Job]]) -> list[Job]:
    """The same runs, each in the group and with the tags of the tables whose cells it fills, or others start from."""
    needed: dict[Path, list[str]] = {}
    for name, its in tables.items():
        for folder in {folder for job in its for folder in (job.folder, *([job.start.folder] if job.start else []))}:
            needed.setdefault(folder, []).append(name)
    return [dataclasses.replace(job, words=(*job.words, *labels(*needed[job.folder]))) for job in jobs]


def log_table(
    table: Table, values: Values, full: bool, choices: Sequence[str], lacking: Mapping[Place, str]
) -> Path:  # fmt: skip
    """Logs the table as a run of its own, which the same cells at the same choices update; returns its folder.

    Project, entity and whether it is sent at once are those of `logger.wandb`.
    """
    import wandb

    config = compose_run(choices)
    logger: Any = OmegaConf.to_container(config.logger.wandb, resolve=True)
    paper = table.name.partition("/")[0]
    selection = {"words": sorted(choices), "cells": sorted(map(str, table.cells))}
    folder = Path(str(config.paths.outputs)) / "tables" / table.name
    folder.mkdir(parents=True, exist_ok=True)
    rows = table_rows(table, values, full, lacking)
    run = wandb.init(
        project=logger["project"], entity=logger.get("entity"), dir=str(folder),
        id=f"table-{re.sub(r'[^a-zA-Z0-9]', '-', table.name)}-{fingerprint(selection)}",
        name=f"table {table.name} · {config.scale} · {config.protocol}", group=table.name, job_type="table",
        tags=[f"paper:{paper}", f"table:{table.name}", f"protocol:{config.protocol}", f"scale:{config.scale}"],
        config={"table": table.name, "title": table.title, "source": table.source, "words": list(choices)},
        mode="offline" if logger["offline"] else "online", resume="allow",
    )  # fmt: skip
    run.log({"table": wandb.Table(columns=list(COLUMNS), data=rows)})
    counts = Counter(row[COLUMNS.index("verdict")] for row in rows)
    run.summary.update({f"cells/{word}": count for word, count in counts.items()})
    run.finish()
    return folder


def table_rows(table: Table, values: Values, full: bool, lacking: Mapping[Place, str]) -> list[list[Any]]:
    """A list for each cell in the order of COLUMNS; None where there is no number. lacking: what data cells need."""
    rows = []
    for place, cell in table.cells.items():
        if cell.column not in {column.name for column in table.columns}:
            continue
        found, printed = values.get(place, {}), cell.printed
        summary = summarise(found) if found else None
        numbers = (None, None, None) if summary is None else (summary.mean, summary.std, summary.half_width)
        shown = ("", None, None) if printed is None else (printed.text, printed.value, printed.spread)
        said = cell_verdict(cell, found, full, place in lacking).value
        words = "; ".join(text for text in (*cell.notes, cell.missing, lacking.get(place)) if text)
        unit, better = cell.metric.unit, cell.metric.better
        rows.append([*place, *numbers, len(found), *shown, unit, better, said, words])
    return rows
