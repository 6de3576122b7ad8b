"""What the page of all results says, as plain data: tables with their cells, runs, and what could not be read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subquad.records import Record
from subquad.results.statistics import Summary
from subquad.results.table import Cell, Place, Table
from subquad.results.verdict import Verdict


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """How much of a task runs saw: full scale, the papers' protocol and real data, or less of one of them."""

    scale: str = "paper"
    protocol: str = "paper"
    synthetic: bool = False

    @property
    def full(self) -> bool:
        """Whether its numbers may be compared with printed ones."""
        return self.scale == "paper" and not self.synthetic

    @property
    def words(self) -> tuple[str, ...]:
        """The words of train.py that choose it."""
        chosen = [f"{key}={value}" for key, value in (("scale", self.scale), ("protocol", self.protocol))]
        return (
            *(word for word in chosen if not word.endswith("=paper")),
            *(["data=synthetic"] if self.synthetic else []),
        )

    @property
    def size(self) -> str:
        """The scale as the page's filter knows it; made-up data are a scale of their own."""
        return f"{self.scale}, made-up data" if self.synthetic else self.scale

    @property
    def label(self) -> str:
        """In words; empty for full scale, the papers' protocol and real data."""
        parts = [f"scale {self.scale}"] if self.scale != "paper" else []
        parts += [f"protocol {self.protocol}"] if self.protocol != "paper" else []
        return ", ".join([*parts, *(["made-up data"] if self.synthetic else [])])


FULL = Scope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run. `key` is its folder below outputs/runs; `history` what it logged, by optimiser step."""

    key: str
    record: Record
    command: str
    history: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def scope(self) -> Scope:
        """From its record."""
        synthetic = bool(self.record.config.get("data", {}).get("synthetic"))
        return Scope(self.record.scale, self.record.protocol, synthetic)

    @property
    def monitor(self) -> str:
        """The name of the metric that picked its best epoch, without the split: accuracy."""
        return str(self.record.config.get("task", {}).get("monitor", "")).rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of a cell in one scope.

    text: mean and spread, or words; empty where nothing is known. floors: scores that need no model, in the unit of the
    cell. facts: of a measurement, where and when it was taken.
    """

    scope: Scope
    verdict: Verdict
    text: str = ""
    values: Mapping[int, float] = field(default_factory=dict)
    summary: Summary | None = None
    runs: Sequence[Run] = ()
    floors: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPart:
    """One cell of a table with what is known of it: `values` in full scope first, then others that know something.

    needs: the sentence that says which data its runs lack and how they are had; empty where nothing is missing.
    """

    cell: Cell
    anchor: str
    command: str
    values: tuple[Value, ...]
    needs: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing is printed there and nothing can be put there."""
        return self.cell.printed is None and bool(self.cell.missing)

    @property
    def standing(self) -> Verdict:
        """Its verdict in full scope; where there is none, whether another scope has a number."""
        first, *others = self.values
        if not first.text and any(value.verdict is Verdict.OTHER_SCALE for value in others):
            return Verdict.OTHER_SCALE
        return first.verdict


KINDS = {
    "trained": "Results of training", "measured": "Costs, counted or measured",
    "stated": "Settings and constants, compared with the configuration: no experiment",
}  # fmt: skip
"""What a cell takes, and how it is headed: agreement means something else for each."""

_STATED = frozenset({"setting", "energy_cost", "complexity"})
"""Functions of results/measures.py that read what is written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A table with its cells."""

    table: Table
    command: str
    cells: Mapping[Place, CellPart]

    @property
    def paper(self) -> str:
        """The folder of its file: dba."""
        return self.table.name.partition("/")[0]

    @property
    def shown(self) -> list[CellPart]:
        """The cells of printed columns, but those that are empty."""
        columns = {column.name for column in self.table.columns}
        parts = [part for part in self.cells.values() if part.cell.column in columns]
        return [part for part in parts if not part.empty]

    def kind(self, part: CellPart) -> str:
        """One of KINDS; a mean is what its parts are."""
        cell = self.table.cells[part.cell.mean[0]] if part.cell.mean else part.cell
        if not cell.measure or cell.of_run:
            return "trained"
        return "stated" if str(cell.measure.get("_target_")).rpartition(".")[2] in _STATED else "measured"

    @property
    def scopes(self) -> list[Scope]:
        """Full scope, and others in which a cell has a value."""
        return [FULL, *sorted({v.scope for part in self.cells.values() for v in part.values if v.text} - {FULL})]

    def counts(self) -> Counter[Verdict]:
        """How many cells have each verdict."""
        return Counter(part.standing for part in self.shown)

    def filled(self, scope: Scope) -> int:
        """How many cells have a value in a scope."""
        return sum(any(value.scope == scope and value.text for value in part.values) for part in self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that cannot be read, or a run that failed: where, and what is wrong with it."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that the page shows. `own` are runs that no cell of a table asks for."""

    tables: Sequence[TablePart]
    runs: Sequence[Run]
    own: Sequence[Run]
    broken: Sequence[Problem]
    failed: Sequence[Problem]
    unfinished: int
    pictures: Sequence[Path]
    benches: Sequence[Path]
    made: str

    @property
    def machines(self) -> list[tuple[Mapping[str, Any], int]]:
        """Each machine and how many runs it finished."""
        described = {str(sorted(run.record.machine.items(), key=str)): run.record.machine for run in self.runs}
        counts = Counter(str(sorted(run.record.machine.items(), key=str)) for run in self.runs)
        return [(described[key], count) for key, count in counts.most_common()]
