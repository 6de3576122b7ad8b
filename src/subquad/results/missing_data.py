"""Which cells of a table have no value because their data are not on this machine."""

from collections.abc import Mapping

from subquad.results.cells import Runs
from subquad.results.table import Cell, Place, Table


def lacking(table: Table, values: Mapping[Place, Mapping[int, float]], runs: Runs) -> dict[Place, str]:
    """What each trained cell without a value lacks, and each mean of one, as a sentence with the remedy."""
    empty = {place: cell for place, cell in table.cells.items() if not values.get(place)}
    found: dict[Place, str] = {}
    for place, cell in empty.items():
        if (cell.trained or cell.chained) and (reason := runs.needs(runs.run_of(cell, 0))):
            found[place] = reason
    return with_means(empty, found)


def with_means(cells: Mapping[Place, Cell], found: Mapping[Place, str]) -> dict[Place, str]:
    """The same with what means lack: what the first of their parts lacks."""
    of_parts = {place: [found[part] for part in cell.mean if part in found] for place, cell in cells.items()}
    return {**found, **{place: reasons[0] for place, reasons in of_parts.items() if reasons}}
