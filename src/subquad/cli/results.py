"""Keeps results in docs/results, the records that the project publishes, and checks them.

python scripts/results.py check                                          # lists lines that are outdated or unreadable
python scripts/results.py add outputs                                    # every finished run and measurement in there
python scripts/results.py add outputs/runs/uea/basic_motions             # the runs below a folder
python scripts/results.py add outputs again=true                         # also those that replace a kept result
python scripts/results.py add outputs/bench/<time>/results.json          # the benchmark that the documentation shows

A result is added if its source was a clean commit, its data are real, its metrics are finite, and its overrides compose
to its fingerprint. Reports and tables show these results as measured by the project.
"""

import sys
from pathlib import Path

from omegaconf import OmegaConf

from subquad import records
from subquad.cli.command import script_settings
from subquad.config.compositions import Compositions
from subquad.results.store import (
    FOLDER,
    Store,
    StoredMeasurement,
    StoredRun,
    add_bench,
    stored_measurement,
    stored_run,
)
from subquad.utils.errors import UserError


def main() -> int:
    """Runs `add` or `check`; 1 if something was refused or is outdated."""
    action, *arguments = sys.argv[1:] or [""]
    if action == "check" and not arguments:
        return _check()
    paths = [Path(argument) for argument in arguments if "=" not in argument]
    if action != "add" or not paths:
        raise UserError("Say check, or add with folders of results, as in: python scripts/results.py add outputs/runs.")
    config = script_settings(
        OmegaConf.create({"again": False}), [argument for argument in arguments if "=" in argument]
    )
    return _add(paths, bool(config.again))


def _check() -> int:
    store, compositions = Store.read(), Compositions()
    problems = [*store.broken, *store.outdated(compositions)]
    compositions.save()
    for problem in problems:
        print(f"{problem.path}: {problem.message}")
    print(
        f"{len(store.runs):,} runs and {len(store.measurements):,} measurements in {FOLDER}; {len(problems)} problems"
    )
    return int(bool(problems))


def _add(paths: list[Path], again: bool) -> int:
    store, compositions = Store.read(), Compositions()
    if store.broken:
        raise UserError(f"{store.broken[0].path}: {store.broken[0].message}")
    runs: list[StoredRun] = []
    measurements: list[StoredMeasurement] = []
    refused = kept = 0
    for path in (found for top in paths for found in _results_below(top)):
        name = path.stem if path.suffix else path.name
        if not again and (name in store.runs or name in store.measurements):
            kept += 1
            continue
        try:
            if path.name == "results.json":
                add_bench(path)
                print(f"{path} is the benchmark of the documentation now; run `make docs`.")
            elif path.suffix:
                measurements.append(stored_measurement(path, compositions))
            else:
                runs.append(stored_run(path, compositions))
        except UserError as error:
            refused += 1
            print(f"Refused: {error}")
    compositions.save()
    if runs or measurements:
        store.with_results(runs, measurements).write()
    print(
        f"Added {len(runs)} runs and {len(measurements)} measurements to {FOLDER}; {kept} were there, {refused} refused"
    )
    return int(bool(refused))


def _results_below(top: Path) -> list[Path]:
    """Folders of finished runs, and files of measurements."""
    if top.suffix == ".json" and top.name != records.RESULT:
        return [top]
    found = [path.parent for path in sorted(top.rglob(records.RESULT))]
    found += [path for path in sorted(top.rglob("*.json")) if path.parent.name == "measured"]
    if not found:
        raise UserError(f"There is no finished run and no measurement in {top}.")
    return found
