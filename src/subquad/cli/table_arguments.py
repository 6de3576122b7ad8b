"""The settings of commands about tables: reproduce, plan, report and dashboard."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import ListConfig, OmegaConf

from subquad.cli.command import script_settings
from subquad.config.choices import CONFIGS, options
from subquad.config.compose import load_own_attention
from subquad.config.compositions import Compositions
from subquad.config.task_metadata import task_of
from subquad.results.added_rows import AddedRow, free_rows, path_of, rates_of, with_rows
from subquad.results.cells import PRECISION, RunIndex, load_table, load_tables, select
from subquad.results.model import Scope
from subquad.results.table import Table
from subquad.utils.errors import UserError

DEFAULTS: dict[str, Any] = {"table": "???", "rows": None, "columns": None, "seeds": None, "attention": None}
_PASSED = ("scale=", "data=", "protocol=", "trainer", "logger", "hydra", "sweep.", "paths.")
"""Overrides of train.py that do not change which cell a run belongs to."""


def split_arguments(own: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The settings of a command (`own` and those of tables), and the overrides that go to every run."""
    passed = [override for override in sys.argv[1:] if override.startswith(_PASSED)]
    of_row = [override for override in sys.argv[1:] if override.startswith(("attention=", "attention.", "+attention."))]
    rest = [override for override in sys.argv[1:] if override not in (*passed, *of_row)]
    config = script_settings(DEFAULTS | dict(own), rest)
    config.attention = sorted(of_row, key=lambda override: not override.startswith("attention=")) or None
    return config, passed


def outputs_of(passed: Sequence[str]) -> Path:
    """The folder of outputs that overrides of train.py choose."""
    compositions = Compositions()
    outputs = compositions[[override for override in passed if override.startswith("paths.")]].outputs
    compositions.save()
    return Path(outputs)


def chosen_tables(config: Any, passed: Sequence[str] = ()) -> list[Table]:
    """The chosen rows and columns of `table`: one, a list, or all that can be read. Raises UserError without one.

    passed: overrides that may say where outputs are, with the rows that the user has added to tables.
    """
    if OmegaConf.is_missing(config, "table"):
        raise UserError("Which table? Say table=<paper>/<number>, for example table=dba/2, or table=all.")
    if config.table is None:
        raise UserError("table= names no table; say table=<paper>/<number>, for example table=dba/2, or table=all.")
    for key in ("rows", "columns"):
        if config[key] == []:
            raise UserError(f"{key}=[] selects nothing; name some, or leave the setting out for all.")
    if config.table == "all":
        tables, unreadable = load_tables(options("table"))
        sys.stderr.write("".join(f"Left out: {reason}\n" for reason in unreadable.values()))
    else:
        tables = [load_table(name) for name in dict.fromkeys(_listed(config.table))]
    outputs = outputs_of(passed)
    added = {}
    for table in tables:
        added[table.name], others = free_rows(outputs, table)
        sys.stderr.write("".join(f"Left out: {problem.path}: {problem.message}\n" for problem in others))
    if config.attention:
        added[tables[0].name].setdefault(_own_row(config, added, outputs), AddedRow(tuple(config.attention)))
    tables = [with_rows(table, added[table.name]) for table in tables]
    return select(tables, _listed(config.rows), _listed(config.columns))


def _own_row(config: Any, added: Mapping[str, Mapping[str, AddedRow]], outputs: Path) -> str:
    """The name of the row that attention= adds; raises UserError where it cannot be added."""
    rows, [table, *others] = _listed(config.rows), [*added]
    if others or len(rows) != 1 or not config.attention[0].startswith("attention="):
        raise UserError(
            "attention= adds one row to one table of attentions; name both, as in table=arena rows=[mine] "
            f"{config.attention[0]}."
        )
    known = added[table].get(rows[0])
    if known is not None and known.overrides != tuple(config.attention):
        raise UserError(
            f"Row {rows[0]} of table {table} is {' '.join(known.overrides)}; give this one another name, or remove it "
            f"from {path_of(outputs, table)}."
        )
    if ":" in (name := config.attention[0].partition("=")[2]):
        load_own_attention(name, config.attention[1:])
    return rows[0]


def table_of_rates(table: Table) -> Table | None:
    """The cells that choose the learning rates of the user's rows in a table; None if there are none."""
    own = {row.name: AddedRow(row.overrides) for row in table.rows if row.name in table.added}
    if not own or (name := rates_of(table.name)) is None:
        return None
    tasks = {task_of(cell.overrides) for cell in table if cell.trained}
    grown = with_rows(load_table(name), own)
    columns = [column.name for column in grown.columns if task_of(column.overrides) in tasks]
    return grown.select([*own], columns) if columns else None


def _listed(value: Any) -> list[str]:
    """Names as a list: rows=DBA is rows=[DBA]."""
    return [str(name) for name in ([] if value is None else value if isinstance(value, ListConfig) else [value])]


def chosen_seeds(config: Any, tables: list[Table]) -> dict[str, list[int] | None]:
    """The seeds of each table; None for as many as its cells declare. Raises UserError at anything else."""
    given = config.seeds
    if given is None:
        return {table.name: None for table in tables}
    seeds = list(given) if isinstance(given, ListConfig) else [given]
    if wrong := [seed for seed in seeds if type(seed) is not int or not 0 <= seed < 2**32]:
        raise UserError(f"seeds has {wrong[0]!r}; it lists whole numbers from 0 to {2**32 - 1}, as in seeds=[0,1,2].")
    return {table.name: list(dict.fromkeys(seeds)) for table in tables}


def chosen_scope(config: Any) -> Scope:
    """The scope in which one table is shown: scale=, protocol=, data=. Raises UserError at unknown ones."""
    if config.table is None:
        raise UserError("Which table? Say table=<paper>/<number>, for example table=dba/2.")
    for key in ("scale", "protocol"):
        if config[key] not in options(key):
            raise UserError(f"There is no {key} {config[key]}; choose {', '.join(options(key))}.")
    if config.data not in (None, "synthetic"):
        raise UserError("data= takes synthetic, or is left out.")
    return Scope(config.scale, config.protocol, config.data == "synthetic")


def scope_of(runs: RunIndex, tables: Sequence[Table]) -> Scope:
    """The scope of these runs. Overrides of the trainer but its precision belong to it if they change what a run is."""
    scope = Scope.of(runs.overrides)
    shipped = {f"trainer={file.stem}" for file in (CONFIGS / "trainer").glob("*.yaml")}
    given = (override for override in runs.overrides if override.startswith(("trainer.", "trainer=")))
    of_trainer = tuple(o for o in given if o not in shipped and not o.startswith(PRECISION))
    trained = next((cell for table in tables for cell in table if cell.trained), None)
    if of_trainer and trained is not None:
        plain = RunIndex([o for o in runs.overrides if o not in of_trainer], runs.compositions)
        if runs.spec(trained.overrides, 0).folder != plain.spec(trained.overrides, 0).folder:
            return replace(scope, overrides=of_trainer)
    return scope


def check_switch(config: Any, *names: str) -> None:
    """Raises UserError if one of these settings is not true, false or null."""
    for name in names:
        if config[name] not in (True, False, None):
            raise UserError(f"{name} is {config[name]}; it takes true or false.")
