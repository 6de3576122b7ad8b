"""Keeps results in docs/results, the records that the project publishes, and checks them.

python scripts/results.py check                                          # lists lines that are outdated or unreadable
python scripts/results.py add outputs                                    # every finished run and measurement in there
python scripts/results.py add outputs/runs/uea/basic_motions             # the runs below a folder
python scripts/results.py add outputs again=true                         # also those that replace a kept result
python scripts/results.py add outputs/bench/<time>/results.json          # the documentation's benchmark of a device
python scripts/results.py repeat count=10 seed=0                         # trains ten kept runs, chosen at random, again

A result is added if its source was a clean commit, its data are real, its metrics are finite, and its overrides compose
to its fingerprint. Reports and tables show these results as measured by the project.
"""

import os
import random
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from subquad import records
from subquad.cli.command import script_settings
from subquad.config.compositions import Compositions
from subquad.config.overrides import as_override
from subquad.results.benches import add_bench
from subquad.results.model import Problem
from subquad.results.store import (
    FOLDER,
    Store,
    StoredMeasurement,
    StoredRun,
    stored_measurement,
    stored_run,
)
from subquad.utils.display import counted
from subquad.utils.errors import UserError


def main() -> int:
    """Runs `add`, `check` or `repeat`; 1 if something was refused, is outdated or has other numbers."""
    action, *arguments = sys.argv[1:] or [""]
    if action == "check" and not arguments:
        return _check()
    if action == "repeat":
        config = script_settings({"count": 10, "seed": 0}, arguments)
        return _repeat(config.count, config.seed)
    paths = [Path(argument) for argument in arguments if "=" not in argument]
    if action != "add" or not paths:
        raise UserError(
            "Say check, repeat, or add with folders of results, as in: python scripts/results.py add outputs/runs."
        )
    config = script_settings({"again": False}, [argument for argument in arguments if "=" in argument])
    return _add(paths, bool(config.again))


def _check() -> int:
    store, compositions = Store.read(), Compositions()
    problems = [*store.broken, *store.outdated(compositions)]
    if not store.results:
        problems.append(Problem(path=str(FOLDER), message="it holds no result; take it from the repository again."))
    compositions.save()
    for problem in problems:
        print(f"{problem.path}: {problem.message}")
    print(
        f"{counted(len(store.runs), 'run')} and {counted(len(store.measurements), 'measurement')} in {FOLDER}; "
        f"{counted(len(problems), 'problem')}"
    )
    return int(bool(problems))


def _add(paths: list[Path], again: bool) -> int:
    store, compositions = Store.readable(), Compositions()
    runs: list[StoredRun] = []
    measurements: list[StoredMeasurement] = []
    refused = kept = trials = 0
    for path in (found for top in paths for found in _results_below(top)):
        try:
            if path.name == "results.json":
                add_bench(path)
                print(f"{path} is the documentation's benchmark of its device now; run `make docs`.")
                continue
            new = stored_measurement(path, compositions) if path.is_file() else stored_run(path, compositions)
            if not again and (new.name in store.runs or new.name in store.measurements):
                kept += 1
            elif isinstance(new, StoredMeasurement):
                measurements.append(new)
            elif new.scale == "smoke":
                trials += 1
            else:
                runs.append(new)
        except UserError as error:
            refused += 1
            print(f"Refused: {error}")
    compositions.save()
    if runs or measurements:
        store.with_results(runs, measurements).write()
    print(
        f"Added {counted(len(runs), 'run')} and {counted(len(measurements), 'measurement')} to {FOLDER}; "
        f"{kept} were there, {refused} refused, {trials} at scale=smoke left out"
    )
    return int(bool(refused))


def _repeat(count: int, seed: int) -> int:
    """Trains kept runs again, each with the number of threads that it had, and prints the numbers that differ."""
    runs = Store.readable().runs
    names = random.Random(seed).sample(sorted(runs), min(count, len(runs)))
    differ = failed = 0
    took = timedelta(seconds=round(sum(runs[name].wall_seconds for name in names)))
    print(f"To be trained again: {counted(len(names), 'run')}; they took {took} when they were kept.", flush=True)
    for name in names:
        kept = runs[name]
        try:
            record = _trained(kept)
        except UserError as error:
            failed += 1
            print(error, flush=True)
            continue
        changed = [
            f"{key} is {record.metrics.get(key)}, kept {value}"
            for key, value in kept.metrics.items()
            if record.metrics.get(key) != value
        ]
        differ += bool(changed)
        before, here = ((machine["cpu"], machine.get("vectors")) for machine in (kept.machine, record.machine))
        if changed and before != here:
            changed.append(f"kept from {_processor(*before)}, here {_processor(*here)}, which may round differently")
        print(f"{kept.command}: {'; '.join(changed) or 'the same numbers'}", flush=True)
    print(f"{counted(len(names) - failed, 'run')} trained again; {differ} with other numbers, {failed} failed")
    return int(differ > 0 or failed > 0)


def _processor(name: str, vectors: str | None) -> str:
    """The name of a processor with its vector instructions, which early records do not have."""
    return f"{name} ({vectors or 'vector instructions not recorded'})"


def _trained(kept: StoredRun) -> records.Record:
    """The record of the run, trained again in a folder of its own. Raises UserError if that fails."""
    with tempfile.TemporaryDirectory() as outputs:
        overrides = [*kept.overrides, f"seed={kept.seed}", f"paths.outputs={as_override(outputs)}"]
        done = subprocess.run(
            [sys.executable, "-m", "subquad.cli.train", *overrides], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": str(kept.machine["threads"])}, text=True, check=False,
        )  # fmt: skip
        found = [record for record in records.read_all(Path(outputs)) if record.name == kept.name]
    if done.returncode or not found:
        raise UserError(f"{kept.command} failed: {' '.join(done.stdout.strip().splitlines()[-3:])[:600]}")
    return found[0]


def _results_below(top: Path) -> list[Path]:
    """Folders of finished runs, and files of measurements."""
    if not top.exists():
        raise UserError(f"There is no {top}.")
    if top.suffix == ".json" and top.name != records.RESULT:
        if top.name != "results.json" and top.parent.name != "measured":
            raise UserError(
                f"{top} is neither a measurement in a folder `measured` nor the results.json of a benchmark."
            )
        return [top]
    if top.name == records.RESULT:
        return [top.parent]
    found = [path.parent for path in sorted(top.rglob(records.RESULT))]
    found += [path for path in sorted(top.rglob("*.json")) if path.parent.name == "measured"]
    if not found:
        raise UserError(f"There is no finished run and no measurement in {top}.")
    return found
