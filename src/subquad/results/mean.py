"""Means over cells, as the papers print them, and whether the printed ones are right."""

from collections.abc import Mapping

from subquad.results.table import Cell, Table

Values = Mapping[int, float]
"""A quantity by seed; a quantity without a seed has the key 0."""


def mean_values(parts: list[Values]) -> dict[int, float]:
    """The mean over cells for each seed that all of them have."""
    common = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {seed: sum(part[seed] for part in parts) / len(parts) for seed in sorted(common)}


def misprinted(table: Table) -> dict[tuple[str, str], tuple[float, float]]:
    """Printed means that are not the mean of the printed cells: (printed, computed), beyond the rounding of both."""
    wrong = {}
    for cell in table:
        values = [_printed(table.cells[place]) for place in cell.mean]
        if cell.printed is None or cell.printed.value is None or not values or None in values:
            continue
        numbers = [value for value in values if value is not None]
        mean = sum(numbers) / len(numbers)
        roundings = [part.printed.rounding for part in (table.cells[p] for p in cell.mean) if part.printed]
        allowed = cell.printed.rounding + sum(roundings) / len(roundings)
        if abs(mean - cell.printed.value) > allowed + 1e-9:
            wrong[cell.row, cell.column] = (cell.printed.value, mean)
    return wrong


def _printed(cell: Cell) -> float | None:
    return None if cell.printed is None else cell.printed.value
