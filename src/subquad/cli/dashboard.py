"""A report of a table, or of all, in Weights & Biases: ours beside the printed values, and the learning curves.

python scripts/dashboard.py table=dba/2                                # writes what would be sent
python scripts/dashboard.py table=dba/2 logger.wandb.offline=false     # sends it; needs an account and a network
python scripts/dashboard.py table=dba/2 scale=laptop output=report.json
python scripts/dashboard.py table=all                                  # the overview: verdicts, and every table

Needs the package wandb-workspaces. logger.wandb.project= and logger.wandb.entity= say where, as for runs. The same
command renews the report of the same table, scale and protocol.
"""

import sys
from pathlib import Path
from typing import Any

from subquad.cli.command import script_settings
from subquad.config.compose import compose_run
from subquad.utils.errors import UserError

DEFAULTS = {"table": None, "scale": "paper", "protocol": "paper", "data": None, "output": None}
PASSED = ("logger", "paths.")


def main() -> None:
    """Prints where the report is kept, and its address where it is sent."""
    passed = [override for override in sys.argv[1:] if override.startswith(PASSED)]
    config = script_settings(DEFAULTS, [override for override in sys.argv[1:] if override not in passed])
    composed = compose_run(["logger=wandb", *(override for override in passed if override != "logger=wandb")])
    _report(config, composed, [override for override in passed if override.startswith("paths.")])


def _report(config: Any, composed: Any, paths: list[str]) -> None:
    from subquad.cli.table_arguments import chosen_scope
    from subquad.records import now
    from subquad.report import wandb_report
    from subquad.results.collect import all_tables, gather, gather_table
    from subquad.results.model import FULL

    scope = chosen_scope(config)
    logger, outputs = composed.logger.wandb, Path(str(composed.paths.outputs))
    target = wandb_report.Target(project=logger.project, entity=logger.entity)
    name = "-".join(["dashboard", *(override.partition("=")[2] for override in scope.choices)])
    if config.table == "all":
        if scope != FULL:
            raise UserError(
                f"The overview has results at the papers' scale and protocol; leave {' '.join(scope.choices)} out."
            )
        report = wandb_report.overview(gather(all_tables(), paths, check=False).tables, target, now())
        kept = outputs / "tables" / f"{name}.json"
    else:
        results = gather_table(config.table, paths)
        report = wandb_report.report(results, scope, wandb_report.shown_tasks(results, scope), target, now())
        kept = outputs / "tables" / results.table.name / f"{name}.json"
    kept = Path(config.output or kept)
    wandb_report.write(report, kept)
    print(kept)
    if logger.offline:
        print("Not sent: the same command with logger.wandb.offline=false sends it.")
    else:
        print(wandb_report.send(report))
