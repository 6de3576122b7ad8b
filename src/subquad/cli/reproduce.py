"""Runs every cell of a paper's table and shows it beside the printed numbers.

python scripts/reproduce.py table=dba/2 scale=laptop
python scripts/reproduce.py table=primal_dual/1 columns=[Attention-BN] rows=[JapaneseVowels] seeds=[0,1]
python scripts/reproduce.py table=[dba/2,dba/3] hydra/launcher=slurm   # several, on a cluster; or table=all
python scripts/reproduce.py table=dba/2 run=false                      # only shows what there is
python scripts/reproduce.py table=dba/2 run=false compare=[DBA,Luna]   # does one row (or column) beat another?

Finished runs are not trained again, interrupted ones go on, failed ones are tried once more: the same command, typed
again, does what is left. What rows=, columns= and seeds= select is trained; overrides of train.py that do not change
which cell a run belongs to (scale=, data=synthetic, protocol=, trainer=, logger=, hydra/...) go to every run;
sweep.workers= is how many train at a time. Cells that are measured and not trained are
measured too, except at scale=smoke; measure=true and measure=false say it.
"""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from subquad.cli.table_arguments import asked, asked_seeds, asked_tables, check_switch, smaller
from subquad.report import wandb_table
from subquad.report.terminal import show_table
from subquad.results.cells import Job, Runs, merged
from subquad.results.compare import duel, opponents
from subquad.results.measurement_cache import measured_values
from subquad.results.missing_data import lacking
from subquad.results.table import Table
from subquad.sweep.progress import Shown
from subquad.sweep.runner import train_all
from subquad.utils.errors import UserError

OWN: dict[str, Any] = {"run": True, "measure": None, "again": False, "compare": []}


def main() -> int:
    """Trains and measures what is missing, prints the tables; 1 where a run failed, lacks data or gave no number."""
    config, passed = asked(OWN)
    check_switch(config, "run", "measure", "again")
    tables = asked_tables(config)
    seeds = asked_seeds(config, tables)
    if not any(table.cells and (seeds[table.name] != [] or table.seeds == 0) for table in tables):
        raise UserError("Nothing is selected; widen rows=, columns= or seeds=.")
    sides = [str(name) for name in config.compare or []]
    for table in tables if sides else ():
        opponents(table, sides)
    of_sweep = [word for word in passed if word.startswith(("hydra", "sweep."))]
    choices = tuple(word for word in passed if word not in of_sweep)
    dashboard = wandb_table.asked(choices)
    runs = Runs(choices)
    failed = config.run and _train(runs, tables, seeds, of_sweep, dashboard)
    wanted = "scale=smoke" not in choices if config.measure is None else config.measure
    small = smaller(runs, tables)
    unusable = False
    for table in tables:
        measured, remarks = measured_values(table, runs, config.run and wanted, config.again)
        said = {place: value for place, value in measured.items() if isinstance(value, str)}
        numbers = {place: value for place, value in measured.items() if not isinstance(value, str)}
        runs.unusable.clear()
        values = runs.values(table, seeds[table.name], numbers)
        remarks |= runs.unusable
        unusable = unusable or bool(runs.unusable)
        note = f" ({', '.join(small)}: no reproduction)" if small else ""
        without = lacking(table, values, runs)
        show_table(table, values, not small, note, said, remarks, without)
        if dashboard:
            folder = wandb_table.log_table(table, values, not small, choices, without)
            sys.stdout.write(f"Weights & Biases has the table: {folder}/wandb\n")
        if sides:
            sys.stdout.write("\n".join(duel(table, values, sides)) + "\n")
    runs.compositions.save()
    return int(failed or unusable)


def _train(
    runs: Runs, tables: Sequence[Table], seeds: dict[str, list[int] | None], hydra: list[str], dashboard: bool
) -> bool:
    """Trains what has not finished and has its data; whether anything is left undone."""
    shown = [Shown(table.name, runs.cells(table, seeds[table.name])) for table in tables]
    jobs = [
        job
        for job in merged(job for table in tables for job in runs.jobs(table, seeds[table.name]))
        if not job.finished
    ]
    runs.compositions.save()
    missing: dict[str, list[Job]] = {}
    for job in jobs:
        if (need := runs.needs(job)) is not None:
            missing.setdefault(need, []).append(job)
    left = {job.folder for found in missing.values() for job in found}
    for need, found in missing.items():
        folders = {job.folder for job in found}
        cells = [
            f"{table.name} {' / '.join(place)}"
            for table in shown
            for place, its in table.cells.items()
            if {job.folder for job in its} & folders
        ]
        Console(highlight=False).print(
            f"{len(found)} runs lack their data: {need}\n  They fill {_few(cells)}.", soft_wrap=True, markup=False
        )
    jobs = [job for job in jobs if job.folder not in left]
    if dashboard:
        jobs = wandb_table.labelled(
            jobs, {table.name: [job for cell in table.cells.values() for job in cell] for table in shown}
        )
    return (bool(jobs) and train_all(jobs, hydra, shown)) or bool(left)


def _few(cells: Sequence[str], most: int = 8) -> str:
    more = f" and {len(cells) - most} more" if len(cells) > most else ""
    return ", ".join(cells[:most]) + more
