"""What a command line asks of tables: reproduce.py and plan.py take the same words."""

import sys
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from subquad.errors import UserError
from subquad.run.cells import load_table, select
from subquad.run.doors import options, script_settings
from subquad.tables.table import Table

DEFAULTS: dict[str, Any] = {"table": "???", "rows": [], "columns": [], "seeds": None}
_PASSED = ("scale=", "data=", "protocol=", "trainer", "logger", "hydra", "paths.")
"""Words of train.py that leave a cell what it is."""


def asked(own: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The script's settings, `own` and those of tables, and the words of this command that go to every run."""
    passed = [word for word in sys.argv[1:] if word.startswith(_PASSED)]
    settings = OmegaConf.create(DEFAULTS | dict(own))
    return script_settings(settings, [word for word in sys.argv[1:] if word not in passed]), passed


def asked_tables(config: Any) -> list[Table]:
    """The chosen rows and columns of `table`: one, a list, or all of them. Raises UserError where it is left out."""
    if OmegaConf.is_missing(config, "table"):
        raise UserError("Which table? Say table=<paper>/<number>, for example table=dba/2, or table=all.")
    names = (
        options("table") if config.table == "all" else [config.table] if isinstance(config.table, str) else config.table
    )
    return select([load_table(name) for name in names], list(map(str, config.rows)), list(map(str, config.columns)))


def asked_seeds(config: Any, tables: list[Table]) -> dict[str, list[int]]:
    """The seeds of each table: those of `seeds`, else as many as it declares."""
    seeds = None if config.seeds is None else [int(seed) for seed in config.seeds]
    return {table.name: list(range(table.seeds)) if seeds is None else seeds for table in tables}
