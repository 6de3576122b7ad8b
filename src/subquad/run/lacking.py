"""Which cells of a table have no value because their data are not on this machine."""

from collections.abc import Mapping, Sequence

from subquad.run.cells import Place
from subquad.run.needs import needs
from subquad.tables.table import Cell, Table

_NOT_DATA = ("attention", "backbone", "optimizer", "scheduler", "seed", "tags", "logger", "trainer", "hydra")


def lacking(table: Table, values: Mapping[Place, Mapping[int, float]], choices: Sequence[str]) -> dict[Place, str]:
    """What is missing for each trained cell without a value, and for each mean of one, as a sentence with the remedy.

    `choices` are words that every run gets beside its cell's. Cells that differ in their model alone are asked once:
    composing a configuration takes a tenth of a second.
    """
    asked: dict[tuple[str, ...], str | None] = {}

    def missing(words: Sequence[str]) -> str | None:
        key = tuple(word for word in words if not word.startswith(_NOT_DATA))
        if key not in asked:
            asked[key] = needs(words)
        return asked[key]

    found: dict[Place, str] = {}
    for place, cell in table.cells.items():
        if not values.get(place) and (cell.trained or cell.chained):
            for words in _runs(cell):
                if reason := missing([*words, *choices]):
                    found.setdefault(place, reason)
    for place, cell in table.cells.items():
        if not values.get(place) and (reasons := [found[part] for part in cell.mean if part in found]):
            found[place] = reasons[0]
    return found


def _runs(cell: Cell) -> list[tuple[str, ...]]:
    """The words of its run, and of the one that this starts from."""
    return [cell.words, cell.start] if cell.start else [cell.words]
