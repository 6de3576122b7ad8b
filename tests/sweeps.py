"""One small sweep of a table by scripts/reproduce.py, and the table as the page of results has it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from runs import ROOT

TABLE = ("table=primal_dual/9", "columns=[BasicMotions]", "scale=smoke")
REPRODUCE = (sys.executable, "scripts/reproduce.py", *TABLE)


def settings(outputs: Path, environment: Mapping[str, str] | None = None) -> dict:
    """Of a subprocess whose runs go to a folder."""
    env = os.environ | {"SUBQUAD_OUTPUTS": str(outputs), "COLUMNS": "200"} | (environment or {})
    return {"cwd": ROOT, "env": env, "text": True}


def reproduce(outputs: Path, *overrides: str, environment: Mapping[str, str] | None = None) -> str:
    """What the whole sweep prints."""
    done = subprocess.run([*REPRODUCE, *overrides], capture_output=True, **settings(outputs, environment))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def page(outputs: Path) -> str:
    """The table as the page has it."""
    overrides = ("table=primal_dual/9", "format=markdown", "scale=smoke")
    done = subprocess.run([sys.executable, "scripts/report.py", *overrides], capture_output=True, **settings(outputs))
    assert done.returncode == 0, done.stderr
    return done.stdout
