"""Which mechanism to take: from the results of a table, by a rule, for each of its tasks and at each cost.

Two rows differ in a column if `subquad.results.pairs.share_pairs` says so, corrected for all pairs of the column. Of
the best row and those that are not worse, the answer is the one with the least cost; here p is not corrected, since
the correction would keep worse rows among them. A column in which a model without attention is not worse than the best
row decides nothing and gets no answer.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from subquad.config.compositions import Compositions
from subquad.config.mechanisms import NO_ATTENTION, mechanism_of
from subquad.config.task_metadata import task_of
from subquad.results.added_rows import rates_of
from subquad.results.benches import bench_device, bench_times
from subquad.results.cells import load_table
from subquad.results.differences import rows_of
from subquad.results.model import CellResults, TableResults
from subquad.results.pairs import Pair, order, share_pairs
from subquad.results.statistics import LEVEL
from subquad.utils.display import counted

RULE = (
    f"Two rows differ on a task if p < {1 - LEVEL:.2f} after Holm's correction for all pairs of the task, by Welch's "
    "test of their means, with the chance of each row's seeds and that of the test rows; one with several answers "
    "counts as one, which is the cautious bound."
)
"""Says in a sentence when two rows differ."""

CHOICE = (
    "The answer is the row with the least cost among the best one on a task and those that are not worse than it: "
    f"p ≥ {1 - LEVEL:.2f} by the same test, without the correction, which would keep worse rows among them."
)
ALL = "all"
"""The name of the need that asks for a row which is not worse than the best one on any task that decides."""


@dataclass(frozen=True)
class ColumnPairs:
    """A trained column: the means of its rows, the best first, and every pair of them.

    unmeasured: rows without a value of each declared seed, with how many they have.
    """

    column: str
    means: Mapping[str, float]
    pairs: Sequence[Pair]
    lower_is_better: bool
    unmeasured: Mapping[str, int]

    @cached_property
    def signs(self) -> Mapping[tuple[str, str], int]:
        """1 where the first row is better than the second, -1 where it is worse; pairs within chance are left out."""
        sign = -1 if self.lower_is_better else 1
        found = {(p.a, p.b): 1 if sign * p.difference > 0 else -1 for p in self.pairs if p.differs}
        return found | {(b, a): -better for (a, b), better in found.items()}

    def than(self, row: str, better: int) -> list[str]:
        """The rows that a row is better than (1), or worse than (-1)."""
        return [other for other in self.means if self.signs.get((row, other)) == better]

    @property
    def equals(self) -> list[str]:
        """The best row and all that are not worse: of the pairs with it, those with p, uncorrected, above chance."""
        best = next(iter(self.means))
        worse = {pair.b for pair in self.pairs if pair.a == best and pair.p < 1 - LEVEL}
        return [row for row in self.means if row not in worse]


@dataclass(frozen=True, slots=True)
class Pick:
    """The row with the least cost, its cost as text, and its cell; of a benchmark the cell is None."""

    row: str
    text: str
    cell: CellResults | None = None


Chosen = Callable[[Sequence[str]], Pick | None]
"""Chooses of the names of rows that with the least cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The answers for one task. equals: the best row and those that are not worse, the best first.

    decides: whether the model without attention is worse than the best row. picks: by cost; None unless all rows of
    `equals` are measured.
    """

    name: str
    text: str
    means: Mapping[str, float]
    equals: Sequence[str]
    decides: bool
    picks: Mapping[str, Pick | None]


def column_pairs(part: TableResults, column: str) -> ColumnPairs | None:
    """The pairs of a trained column; None below two rows with all of their seeds, or without a better side."""
    values: dict[str, Mapping[int, float]] = {}
    missing: dict[str, int] = {}
    cells = [c for (_, name), c in part.cells.items() if name == column and c.cell.trained]
    for cell in cells:
        seeds = {} if (result := cell.at_full_scale) is None else result.values
        if len(seeds) >= max(2, cell.cell.seeds):
            values[cell.cell.row] = seeds
        else:
            missing[cell.cell.row] = len(seeds)
    if len(values) < 2 or cells[0].cell.metric.better == "equal":
        return None
    lower = cells[0].cell.metric.better == "lower"
    values = {row: values[row] for row in order(values, lower)}
    pairs = share_pairs(values, rows_of(cells[0].cell), cells[0].cell.metric.scale_by)
    means = {row: statistics.fmean(of_row.values()) for row, of_row in values.items()}
    return ColumnPairs(column, means, pairs, lower, missing)


def need_pairs(part: TableResults) -> dict[str, ColumnPairs]:
    """The pairs of each of the table's needs that has some."""
    return {name: found for name in part.table.needs if (found := column_pairs(part, name)) is not None}


def answers(part: TableResults, pairs: Mapping[str, ColumnPairs], benches: Iterable[Mapping[str, Any]]) -> list[Need]:
    """The answers for each of the table's needs that has pairs, then for all of those that decide.

    benches: those of docs/results/bench; their costs on a GPU count for rows of the same choice of attention=, with
    its default settings.
    """
    costs: dict[str, Chosen] = {text: partial(_least, part, column) for column, text in part.table.costs.items()}
    for bench in benches:
        costs |= _on_gpu(part, bench)
    none = {row.name for row in part.table.rows if mechanism_of(row.overrides) == NO_ATTENTION}
    needs = []
    for column, text in part.table.needs.items():
        if (found := pairs.get(column)) is not None:
            decides, rows = none.isdisjoint(found.equals), found.equals
            picks = {cost: pick(rows) for cost, pick in costs.items()} if decides else {}
            needs.append(Need(name=column, text=text, means=found.means, equals=rows, decides=decides, picks=picks))
    deciding = [need for need in needs if need.decides]
    if len(deciding) > 1:
        common = [row for row in deciding[0].equals if all(row in need.equals for need in deciding)]
        picks = {cost: pick(common) for cost, pick in costs.items()}
        text = "every task above that decides"
        needs.append(Need(name=ALL, text=text, means={}, equals=common, decides=True, picks=picks))
    return needs


def limits(part: TableResults, pairs: Mapping[str, ColumnPairs]) -> list[str]:
    """What the table cannot say, in sentences with its own numbers."""
    compositions = Compositions()
    cells = [next(c for c in part.table if c.column == name and c.trained) for name in pairs]
    runs = [compositions[cell.overrides] for cell in cells]
    compositions.save()
    model = runs[0].module["backbone"]
    steps = sorted({run.identity["trainer"]["max_steps"] for run in runs})
    least = [
        f"{min(abs(p.difference) for p in found.pairs if p.differs):.1f} on {name}"
        for name, found in pairs.items()
        if any(p.differs for p in found.pairs)
    ]
    return [
        f"How a wider or deeper model, or a longer training, would rank them: there is one model of {model['layers']} "
        f"layers of width {model['dim']} with {model['heads']} heads, and {_span(steps)} steps.",
        f"What a small difference means: a cell is the mean of {part.table.counts} seeds. The smallest differences "
        f"that were told from chance are {', '.join(least) or 'none'}; no difference shown is not the same as none.",
        *_search(part.table.name),
        "Whether a mechanism still learns at the lengths at which its cost is measured: accuracy is that of the tasks, "
        "which are shorter.",
        "What it costs in your model: times and memory are those of this model over those of softmax on the same "
        "machine, those on a GPU of another model, and only of choices with their default settings.",
    ]


def _search(table: str) -> list[str]:
    """How the learning rates were searched, from the table of rates beside a table."""
    if (name := rates_of(table)) is None:
        return []
    rates = load_table(name)
    tried = Counter(task_of(column.overrides) for column in rates.columns)
    return [
        f"What the best learning rate would give: the search tried {_span(sorted(tried.values()))} rates, with "
        f"{counted(rates.seeds, 'seed')}, and each row has the best of them for each task."
    ]


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}" if numbers[0] == numbers[-1] else f"{numbers[0]:,} to {numbers[-1]:,}"


def _least(part: TableResults, column: str, rows: Sequence[str]) -> Pick | None:
    """The row with the least cost in a measured column."""
    known = [(cell, result) for row in rows if (result := (cell := part.cells[row, column]).at_full_scale)]
    if not rows or len(known) < len(rows):
        return None
    sign = -1 if part.cells[rows[0], column].cell.metric.better == "higher" else 1
    cell, result = min(known, key=lambda pair: sign * pair[1].values[0])
    row, label, value = cell.cell.row, cell.cell.metric.label, result.values[0]
    if label.endswith(f" to {part.table.reference}"):
        return Pick(row, "" if row == part.table.reference else f"{value:.3g} × {part.table.reference}", cell)
    return Pick(row, f"{value:,.0f} {label}", cell)


def _on_gpu(part: TableResults, bench: Mapping[str, Any]) -> dict[str, Chosen]:
    """The costs of a benchmark on a GPU: the time of a forward pass of its whole model, by length."""
    if (gpu := bench_device(bench)) != bench["machine"].get("gpu"):
        return {}
    rows = [row for row in part.table.rows if len(row.overrides) == 1]
    names = {row.name: row.overrides[0].removeprefix("attention=") for row in rows}
    times = bench_times(bench["results"])

    def fastest(length: int, rows: Sequence[str]) -> Pick | None:
        known = [(times[names[row]][length], row) for row in rows if length in times.get(names.get(row, ""), ())]
        if not rows or len(known) < len(rows):
            return None
        least, row = min(known)
        reference = times.get(names.get(part.table.reference, ""), {}).get(length)
        if not reference or row == part.table.reference:
            return Pick(row, f"{least:.3g} ms")
        return Pick(row, f"{least:.3g} ms, {reference / least:.3g} × {part.table.reference}")

    lengths = sorted({length for by_length in times.values() for length in by_length})
    return {f"fastest at {n:,} on {gpu}": partial(fastest, n) for n in lengths}
