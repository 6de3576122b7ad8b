"""Runs every cell of a paper's table and shows it beside the printed numbers.

python scripts/reproduce.py table=dba/2 scale=laptop
python scripts/reproduce.py table=primal_dual/1 columns=[Attention-BN] rows=[JapaneseVowels] seeds=[0,1]
python scripts/reproduce.py table=[dba/2,dba/3] hydra/launcher=slurm   # several, on a cluster; or table=all
python scripts/reproduce.py table=dba/2 run=false                      # only shows what there is
python scripts/reproduce.py table=dba/2 run=false compare=[DBA,Luna]   # does one row (or column) beat another?
python scripts/reproduce.py table=arena rows=[mine] attention=my_module:Mine   # enters an attention of your own

Finished runs are not trained again, interrupted ones go on, failed ones are tried once more: the same command, typed
again, does what is left. rows=, columns= and seeds= select what is trained. Overrides of train.py that do not change
which cell a run belongs to (scale=, data=synthetic, protocol=, trainer=, logger=, hydra/...) go to every run;
sweep.workers= is how many train at a time. attention= (and attention.<setting>=) adds a row to a table of attentions,
which later commands and the report know by its name; its learning rates are chosen as those of the other rows. Cells
that are measured instead of trained are measured too, except at scale=smoke; measure=true and measure=false change
that.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from rich.console import Console

from subquad import records
from subquad.cli.table_arguments import (
    check_switch,
    chosen_seeds,
    chosen_tables,
    outputs_of,
    scope_of,
    split_arguments,
    table_of_rates,
)
from subquad.config.task_metadata import names_files
from subquad.report import wandb_table
from subquad.report.terminal import show_table
from subquad.results.added_rows import AddedRow, free_rows, keep, rates_by_task, with_rows
from subquad.results.cells import RunIndex, RunSpec, load_table, merged
from subquad.results.collect import results_of
from subquad.results.compare import compare_lines, opponents
from subquad.results.footnotes import few
from subquad.results.measurement_cache import measure_cells
from subquad.results.model import CellResults
from subquad.results.store import Store
from subquad.results.table import Table
from subquad.sweep.progress import Shown
from subquad.sweep.runner import train_all
from subquad.utils.display import counted
from subquad.utils.errors import UserError

OWN: dict[str, Any] = {"run": True, "measure": None, "again": False, "compare": []}


class _Undone(NamedTuple):
    """Whether a run failed, and whether the data of one are missing."""

    failed: bool = False
    without_data: bool = False


def main() -> int:
    """Trains and measures what is missing, prints the tables; 1 if a run failed, lacks data or gave no number."""
    config, passed = split_arguments(OWN)
    check_switch(config, "run", "measure", "again")
    tables = chosen_tables(config, passed)
    seeds = chosen_seeds(config, tables)
    if not any(table.cells and (seeds[table.name] != [] or table.seeds == 0) for table in tables):
        raise UserError("Nothing is selected; widen rows=, columns= or seeds=.")
    compare = [config.compare] if isinstance(config.compare, str) else config.compare or []
    sides = [str(name) for name in compare]
    for table in tables if sides else ():
        opponents(table, sides)
    of_sweep = [override for override in passed if override.startswith(("hydra", "sweep."))]
    choices = tuple(override for override in passed if override not in of_sweep)
    dashboard = wandb_table.is_chosen(choices)
    runs = RunIndex(choices)
    runs.compose((cell for table in tables for cell in table if cell.trained), _import_data)
    for place, table in enumerate(tables):
        rates = table_of_rates(table)
        if config.run and rates is not None and _train(runs, [rates], {rates.name: None}, of_sweep, dashboard).failed:
            return 1
        if {row.name for row in table.rows} & {*table.added}:
            tables[place] = _entered(runs, table, rates, config.run)
    undone = _train(runs, tables, seeds, of_sweep, dashboard) if config.run else _Undone()
    measuring = "scale=smoke" not in choices if config.measure is None else config.measure
    scope = scope_of(runs, tables)
    for problem in Store.read().broken:
        sys.stderr.write(f"Left out: {problem.path}: {problem.message}\n")
    unusable = False
    for table in tables:
        measured, failures = measure_cells(table, runs, config.run and measuring, config.again)
        results = results_of(table, runs, scope, seeds[table.name], measured, failures)
        found = results.within(scope)
        unusable = unusable or any(result.unusable for result in found.values())
        show_table(results, scope)
        if dashboard:
            folder = wandb_table.log_table(results, scope, choices)
            sys.stdout.write(f"Weights & Biases has the table: {folder}/wandb\n")
        if sides:
            values = {place: _first(cell) for place, cell in results.cells.items()}
            sys.stdout.write("\n".join(compare_lines(table, values, sides)) + "\n")
    runs.compositions.save()
    return int(undone.failed or undone.without_data or unusable)


def _entered(runs: RunIndex, table: Table, rates: Table | None, kept: bool) -> Table:
    """The table whose rows of the user have their best rates; keeps them where runs may be trained."""
    scope, outputs = scope_of(runs, [table]), outputs_of(runs.overrides)
    rows, _ = free_rows(outputs, load_table(table.name))
    found = None if rates is None else results_of(rates, runs, scope)
    for row in (row for row in table.rows if row.name in table.added):
        known = rows.get(row.name, AddedRow(row.overrides))
        if found is not None:
            known = known.chosen(rates_by_task(found, row.name, scope), scope.full)
        rows[row.name] = known
        if kept:
            keep(outputs, table.name, row.name, known)
    names = [[line.name for line in lines] for lines in (table.rows, table.columns)]
    return with_rows(load_table(table.name), rows).select(*names)


def _first(cell: CellResults) -> Mapping[int, float]:
    """The values by seed of the first result that has some: ours, else those that the project keeps."""
    return next((result.values for result in cell.results if result.values), {})


def _import_data() -> None:
    """Imports what looks for missing data, about a second, while other processes compose."""
    import subquad.data.split_data  # noqa: F401


def _train(
    runs: RunIndex, tables: Sequence[Table], seeds: dict[str, list[int] | None], hydra: list[str], dashboard: bool
) -> _Undone:
    """Trains the unfinished runs whose data are here."""
    shown = [Shown(table.name, runs.cells(table, seeds[table.name])) for table in tables]
    unfinished = []
    for spec in merged(spec for table in tables for spec in runs.specs(table, seeds[table.name])):
        if not spec.finished:
            unfinished.append(spec)
        elif (record := records.read(spec.folder)) is not None and names_files(record.config["data"]):
            from subquad.training.resume import check_finished  # slow

            check_finished(OmegaConf.create(record.config), record, spec.folder)
    runs.compositions.save()
    missing: dict[str, list[RunSpec]] = {}
    for spec in unfinished:
        if (reason := runs.missing_data(spec)) is not None:
            missing.setdefault(reason, []).append(spec)
    left = {spec.folder for specs in missing.values() for spec in specs}
    for reason, specs in missing.items():
        cells = [cell for table in shown for cell in table.filled_by({spec.folder for spec in specs})]
        Console(highlight=False).print(
            f"The data of {counted(len(specs), 'run')} are missing: {reason}\n  They fill {few(cells)}.",
            soft_wrap=True,
            markup=False,
        )
    unfinished = [spec for spec in unfinished if spec.folder not in left]
    if dashboard:
        own_tables = {table.name: [spec for cell in table.cells.values() for spec in cell] for table in shown}
        unfinished = wandb_table.labelled(unfinished, own_tables)
    return _Undone(bool(unfinished) and train_all(unfinished, hydra, shown), bool(left))
