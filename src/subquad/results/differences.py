"""Which differences between printed accuracies exceed chance, by the rows of the test split and the printed spread.

A printed accuracy estimates that of a method over all test sets and seeds. Its variance has two parts:

    test rows   q (1 - q) / (n + 2) with q = (n p + 1) / (n + 2) for accuracy p on n rows (Agresti and Caffo 2000: one
                right and one wrong row are added, so that 100 % is not taken for certain). All seeds are tested on the
                same rows, so that more seeds do not make it smaller.
    seeds       s² / k for the printed standard deviation s over k seeds, with k - 1 degrees of freedom; unknown where
                no spread is printed.

The variance of a mean over tasks is the sum of its parts' divided by the square of their number. Two values differ if
their difference exceeds t √(sum of both variances), with t the two-sided 95 % quantile of Student's distribution and
the degrees of freedom of Welch and Satterthwaite, where test rows have infinitely many. The test is unpaired: who has
the predictions of both models on the same rows can tell smaller differences.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from subquad.config.task_metadata import published_test_rows, task_of
from subquad.results.statistics import quantile
from subquad.results.table import Cell, Claim, Place, Table

_SHARES_OF_ROWS = ("test/accuracy", "test/top5_accuracy")
"""Metrics that are the share of all test rows that are right; the rule holds for no other.

Of rows with several answers (recall, copying, text) they are means of shares, whose variance is at most that of rows
which are right or wrong: the rule then tells fewer differences than there are.
"""

Parts = Sequence[tuple[float, float]]
"""Variances, each with its degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A printed value with the parts of its variance, in the unit of the table.

    rows: the sizes of its test splits, several for a mean. spread_known: whether the spread over seeds is printed, for
    all parts of a mean.
    """

    value: float
    parts: Parts
    rows: tuple[int, ...]
    spread_known: bool


def rows_of(cell: Cell) -> int | None:
    """Rows of the published test split of a cell whose metric is a share of them; None for other cells."""
    return (
        None if cell.metric.name not in _SHARES_OF_ROWS or cell.mean else published_test_rows(task_of(cell.overrides))
    )


def estimate(cell: Cell, cells: Mapping[Place, Cell]) -> Estimate | None:
    """The estimate that a printed cell is; None without a printed number or known test rows."""
    if cell.printed is None or cell.printed.value is None:
        return None
    if cell.mean:
        found = [estimate(cells[place], cells) for place in cell.mean]
        known = [part for part in found if part is not None]
        if len(known) < len(found):
            return None
        parts = tuple(part for each in known for part in _scaled(each.parts, 1 / len(known)))
        rows = tuple(row for each in known for row in each.rows)
        return Estimate(cell.printed.value, parts, rows, all(each.spread_known for each in known))
    if (rows_known := rows_of(cell)) is None:
        return None
    parts = (of_rows(cell.printed.value, rows_known, cell.metric.scale_by),)
    if (spread := cell.printed.spread) is not None and cell.seeds > 1:
        parts += ((spread**2 / cell.seeds, cell.seeds - 1),)
    return Estimate(cell.printed.value, parts, (rows_known,), len(parts) > 1)


def of_rows(value: float, rows: int, unit: float = 1.0) -> tuple[float, float]:
    """The variance of a share of `rows` test rows, with its degrees of freedom; `unit` is 100 for a value in %."""
    share = (rows * value / unit + 1) / (rows + 2)
    return unit**2 * share * (1 - share) / (rows + 2), math.inf


def error_of(parts: Parts) -> tuple[float, float]:
    """The standard error of a value with this variance, and its degrees of freedom."""
    variance, spent = sum(part for part, _ in parts), sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(variance), variance**2 / spent if spent else math.inf


def half_width(parts: Parts) -> float:
    """Half of the 95 % interval of a value with this variance."""
    error, degrees = error_of(parts)
    return quantile(degrees) * error


def _scaled(parts: Parts, factor: float) -> Parts:
    return tuple((variance * factor**2, freedom) for variance, freedom in parts)


@dataclass(frozen=True, slots=True)
class Difference:
    """ours - over at one place of a table: `line` is the column of two rows, or the row of two columns.

    half_width: of its 95 % interval; only a lower bound where a spread is not printed (`spread_known` is false).
    """

    ours: str
    over: str
    line: str
    difference: float
    half_width: float
    spread_known: bool

    @property
    def verdict(self) -> str:
        """carried: ours is above by more than chance; opposite: below by more than chance; else open."""
        if abs(self.difference) <= self.half_width:
            return "open"
        return "carried" if self.difference > 0 else "opposite"


def claimed(table: Table, claim: Claim) -> Iterator[Difference]:
    """Every printed difference that a claim speaks of."""
    of_rows_ = {*claim.ours, *claim.over} <= {row.name for row in table.rows}
    for name in claim.ours:
        for other in claim.over:
            for line in claim.at:
                places = [(each, line) if of_rows_ else (line, each) for each in (name, other)]
                found = [estimate(table.cells[place], table.cells) for place in places if place in table.cells]
                if len(found) == 2 and found[0] is not None and found[1] is not None:
                    yield _difference(name, other, line, found[0], found[1])


def _difference(ours: str, over: str, line: str, a: Estimate, b: Estimate) -> Difference:
    known = a.spread_known and b.spread_known
    return Difference(ours, over, line, round(a.value - b.value, 9), half_width([*a.parts, *b.parts]), known)


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest difference that exceeds chance between two values of a line.

    rows: the sizes of the test splits, several for a mean. half_width: for two values like the mean of the printed
    ones, with the mean of the printed variances over seeds; a lower bound where a spread is not printed
    (`spread_known`).
    """

    line: str
    rows: tuple[int, ...]
    half_width: float
    spread_known: bool

    @property
    def text(self) -> str:
        """The half width, with ≥ where it is a lower bound."""
        return f"{'' if self.spread_known else '≥ '}{self.half_width:.1f}"


def smallest(table: Table) -> tuple[str, list[Smallest]]:
    """The axis ("rows" or "columns") whose lines have one test split each, and the lines with two known values."""
    found: dict[str, list[Smallest]] = {}
    for axis in ("rows", "columns"):
        lines = [_line(table, axis, line.name) for line in (table.rows if axis == "rows" else table.columns)]
        found[axis] = [line for line in lines if line is not None]
    axis = max(("columns", "rows"), key=lambda name: len(found[name]))
    return axis, found[axis]


def _line(table: Table, axis: str, name: str) -> Smallest | None:
    place = 0 if axis == "rows" else 1
    shown = {column.name for column in table.columns}
    cells = [cell for cell in table if cell.place[place] == name and cell.column in shown]
    found = [(cell.metric.name, each) for cell in cells if (each := estimate(cell, table.cells)) is not None]
    if len(found) < 2 or len({(metric, each.rows) for metric, each in found}) > 1:
        return None
    known = [each for _, each in found]
    spreads = [each for each in known if each.spread_known]
    chance = [part for each in known for part in each.parts if math.isinf(part[1])]
    seeds = [part for each in spreads for part in each.parts if not math.isinf(part[1])]
    both = [(2 * v / len(known), freedom) for v, freedom in chance]
    both += [(2 * v / len(spreads), freedom) for v, freedom in seeds]
    return Smallest(name, known[0].rows, half_width(tuple(both)), len(spreads) == len(known))


def claims_of(tables: Sequence[Table]) -> list[tuple[Table, Claim, list[Difference]]]:
    """Each claim of these tables with its differences."""
    return [(table, claim, list(claimed(table, claim))) for table in tables for claim in table.claims]
