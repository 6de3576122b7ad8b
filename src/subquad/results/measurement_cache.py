"""Values of the cells of tables that are measured, kept on disk: one file a cell, setting and machine."""

import dataclasses
from pathlib import Path

from rich.console import Console
from rich.progress import track

from subquad.records import Measurement, fingerprint, read_measurement, write_json
from subquad.results.cells import Runs
from subquad.results.measures import Noted
from subquad.results.table import Cell, Place, Table
from subquad.utils.errors import explain


def measured_values(
    table: Table, runs: Runs, run: bool = True, again: bool = False
) -> tuple[dict[Place, float | str], dict[str, list[Place]]]:
    """Values of the measured cells of a table; reasons why others have none and notes on the values, with their cells.

    run: whether to measure what is not kept; again: whether to measure all anew.
    """
    values: dict[Place, float | str] = {}
    remarks: dict[str, list[Place]] = {}
    cells = [cell for cell in table if cell.measure and not (cell.mean or cell.missing)]
    runs.compose(cells)
    for cell in track(cells, "Measuring", console=Console(stderr=True), transient=True, disable=not run):
        found = None if again else known(cell, runs)
        if found is None and run:
            try:
                found = measure(cell, runs)
            except Exception as error:
                if (reason := explain(error)) is None:
                    raise
                remarks.setdefault(str(reason), []).append((cell.row, cell.column))
        if found is not None:
            values[cell.row, cell.column] = found.value
            if found.note:
                remarks.setdefault(found.note, []).append((cell.row, cell.column))
    return values, remarks


def place(cell: Cell, runs: Runs) -> Path:
    """The file of a cell's measurement: it is named by the cell's configuration and by what is measured of it."""
    found = runs.composition(cell)
    name = fingerprint({"config": found.identity, "measure": cell.measure})
    return Path(found.outputs) / "measured" / f"{name}.json"


def known(cell: Cell, runs: Runs) -> Measurement | None:
    """The kept measurement of a cell, or None."""
    return read_measurement(place(cell, runs))


def measure(cell: Cell, runs: Runs) -> Measurement:
    """Measures a cell and keeps the value."""
    from hydra.utils import instantiate

    from subquad.measure import machine

    every = [*cell.words, *runs.words]
    value = instantiate(cell.measure, every, _convert_="all")
    noted = value if isinstance(value, Noted) else Noted(value)
    found = Measurement(value=noted.value, note=noted.note, measure=dict(cell.measure), words=every, **machine.facts())
    write_json(place(cell, runs), dataclasses.asdict(found))
    return found
