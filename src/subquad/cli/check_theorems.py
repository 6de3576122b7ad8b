"""Checks the theorems and identities of the five papers numerically and prints the errors.

python scripts/check_theorems.py                       # all of them, in seconds
python scripts/check_theorems.py topic=low_rank        # one file of src/subquad/measure/analysis/theorems
python scripts/check_theorems.py output=theorems.json  # also write the numbers to a file
"""

import dataclasses
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from subquad.cli.command import script_settings
from subquad.measure.analysis.theorems.finding import Finding, check_all
from subquad.records import write_json
from subquad.utils.errors import UserError

COLOURS = {"holds": "green", "fails": "red", "misprinted": "yellow"}


def main() -> None:
    """Prints a table with one row per statement."""
    config = script_settings({"topic": "", "output": None}, sys.argv[1:])
    findings = check_all(str(config.topic))
    if not findings:
        raise UserError(f'There is no topic "{config.topic}"; see src/subquad/measure/analysis/theorems.')
    Console(highlight=False).print(_table(findings))
    if config.output:
        write_json(Path(config.output), [dataclasses.asdict(f) for f in findings])


def _table(findings: list[Finding]) -> Table:
    table = Table(show_lines=True)
    for heading in ("source", "statement", "", "measured", "remark"):
        table.add_column(heading, ratio=None if heading in ("source", "") else 3)
    for f in findings:
        measured = "\n".join(f"{name}: {value:.3g}" for name, value in f.measured.items())
        source, statement, remark = (escape(text) for text in (f"{f.paper}, {f.place}", f.statement, f.note))
        table.add_row(source, statement, f"[{COLOURS[f.verdict]}]{f.verdict}[/]", escape(measured), remark)
    return table
