"""What stands beside the rows of a table, or below its columns: scores without a model, and differences that count."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from subquad.config.task_metadata import about_task, task_of
from subquad.results.differences import smallest
from subquad.results.model import CellResult, CellResults, TableResults
from subquad.results.table import Cell

SMALLEST = "smallest difference beyond chance"
"""The title of the line with the differences that two printed values need (docs/differences.md)."""

Lines = Mapping[str, Mapping[str, str]]
"""Texts by the title of their line, then by the name of a row or column."""


@dataclass(frozen=True, slots=True)
class SideLines:
    """`side`: further columns, with a text for some rows. `foot`: further rows, with a text for some columns."""

    side: Lines
    foot: Lines


def side_lines(
    results: TableResults, shown: Callable[[CellResults], CellResult | None], full: bool = True
) -> SideLines:
    """The further lines of a table.

    Scores without a model stand where the tasks are; nowhere if one score would have to stand for several tasks.

    Args:
        results: the table.
        shown: the result of a cell whose scores count, those on the test split of its runs.
        full: whether the results are of the paper's scale. Cells without such scores then have those that their task
            states, and so have printed ones at another scale.
    """
    side: dict[str, Mapping[str, str]] = {}
    foot: dict[str, Mapping[str, str]] = {}
    of_rows = any(word.startswith(("task=", "experiment=")) for row in results.table.rows for word in row.overrides)
    for axis in ("rows", "columns") if of_rows else ("columns", "rows"):
        known = _scores(results, shown, full, axis)
        if known and all(len(texts) == 1 for lines in known.values() for texts in lines.values()):
            into = side if axis == "rows" else foot
            into |= {name: {line: min(texts) for line, texts in lines.items()} for name, lines in known.items()}
            break
    axis, found = smallest(results.table)
    if found:
        (side if axis == "rows" else foot)[SMALLEST] = {line.line: line.text for line in found}
    return SideLines(side, foot)


def _scores(
    results: TableResults, shown: Callable[[CellResults], CellResult | None], full: bool, axis: str
) -> dict[str, dict[str, set[str]]]:
    """The scores by their title and by row or column. What a task states is left out where a run has counted it."""
    measured: dict[str, dict[str, set[str]]] = {}
    stated: dict[str, dict[str, set[str]]] = {}
    for cell in results.shown:
        line = cell.cell.row if axis == "rows" else cell.cell.column
        for name, score in (found.baselines if (found := shown(cell)) else {}).items():
            measured.setdefault(title(name), {}).setdefault(line, set()).add(f"{score:.{cell.cell.digits}f}")
        for name, score in _stated(cell.cell) if full or cell.cell.printed else ():
            stated.setdefault(title(name), {}).setdefault(line, set()).add(f"{score:.1f}")
    return {name: stated.get(name, {}) | measured.get(name, {}) for name in dict.fromkeys([*measured, *stated])}


def title(score: str) -> str:
    """The title of a line with scores without a model."""
    return f"without a model: {score}"


def _stated(cell: Cell) -> Iterator[tuple[str, float]]:
    if cell.metric.name == "test/accuracy" and not (cell.eval_data or cell.mean or cell.measure):
        shortcuts = about_task(task_of(cell.overrides)).get("shortcuts", {})
        yield from ((str(name), float(score)) for name, score in shortcuts.items())
