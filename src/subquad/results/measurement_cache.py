"""Measured values of cells, kept on disk: one file for each cell, setting and machine."""

import inspect
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import track

from subquad.records import Measurement, fingerprint, read_measurement, write_measurement
from subquad.results.cells import RunIndex
from subquad.results.measures import Noted
from subquad.results.table import Cell, Place, Table
from subquad.utils.errors import UserError, explain


def measure_cells(
    table: Table, runs: RunIndex, run: bool = True, again: bool = False
) -> tuple[dict[Place, Measurement], dict[Place, str]]:
    """The measurements of a table's cells, and the reasons why others have none.

    run: whether to measure cells without a kept value; again: whether to measure all cells anew.
    """
    measured: dict[Place, Measurement] = {}
    failures: dict[Place, str] = {}
    cells = [cell for cell in table if cell.measure and not (cell.mean or cell.unavailable)]
    runs.compose(cells)
    for cell in track(cells, "Measuring", console=Console(stderr=True), transient=True, disable=not run):
        found = None if again else read_measurement(path_of(cell, runs))
        if found is None and run:
            try:
                found = measure(cell, runs)
            except Exception as error:
                if (reason := explain(error)) is None:
                    raise
                failures[cell.place] = str(reason)
        if found is not None:
            measured[cell.place] = found
    return measured, failures


def path_of(cell: Cell, runs: RunIndex) -> Path:
    """The file of a cell's measurement, named by the cell's configuration and its `measure`."""
    composition = runs.composition(cell)
    name = fingerprint({"config": composition.identity, "measure": cell.measure})
    return Path(composition.outputs) / "measured" / f"{name}.json"


def find(measurements: Mapping[Path, Measurement], runs: RunIndex, cell: Cell) -> Measurement | None:
    """The measurement of a cell among those by path. Composes a cell only if some measurement has its overrides."""
    if any(is_of(kept, cell) for kept in measurements.values()):
        return measurements.get(path_of(cell, runs))
    return None


def is_of(kept: Measurement, cell: Cell) -> bool:
    """Whether a measurement has the `measure` of a cell and its overrides, behind which are those of a scale."""
    return kept.measure == cell.measure and kept.overrides[: len(cell.overrides)] == [*cell.overrides]


def measure(cell: Cell, runs: RunIndex) -> Measurement:
    """Measures a cell and keeps the value."""
    from hydra.utils import get_method, instantiate

    from subquad.measure import machine

    machine.source()
    overrides = [*cell.overrides, *runs.overrides]
    target = str(cell.measure["_target_"])
    try:
        inspect.signature(get_method(target)).bind(overrides, **{k: v for k, v in cell.measure.items() if k[0] != "_"})
    except TypeError as error:
        raise UserError(f"measure of {cell.row} / {cell.column}: {target} has {error}; correct its settings.") from None
    value = instantiate(cell.measure, overrides, _convert_="all")
    noted = value if isinstance(value, Noted) else Noted(value)
    found = Measurement(
        value=noted.value, note=noted.note, measure=dict(cell.measure), overrides=overrides, **machine.facts()
    )
    write_measurement(found, path_of(cell, runs))
    return found
