"""The results of tables, computed once as plain data, which every view shows: terminal, pages, text, W&B."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from subquad.records import Record
from subquad.results.statistics import Summary
from subquad.results.table import Cell, Place, Table
from subquad.results.verdict import Verdict, is_stated


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Which runs count: full scale, the papers' protocol and real data, or less of one of them.

    overrides: of the trainer, which make its runs shorter or otherwise different from those of the papers.
    project: whether these are the results that the project keeps (docs/results), not those of this machine.
    """

    scale: str = "paper"
    protocol: str = "paper"
    synthetic: bool = False
    overrides: tuple[str, ...] = ()
    project: bool = False

    @classmethod
    def of(cls, overrides: Iterable[str]) -> Self:
        """The scope that overrides of train.py choose."""
        chosen = dict(str(override).partition("=")[::2] for override in overrides)
        return cls(chosen.get("scale", "paper"), chosen.get("protocol", "paper"), chosen.get("data") == "synthetic")

    @property
    def full(self) -> bool:
        """Whether its numbers may be compared with printed ones."""
        return self.scale == self.protocol == "paper" and not self.synthetic and not self.overrides

    @property
    def choices(self) -> tuple[str, ...]:
        """The overrides of train.py that choose it."""
        chosen = [f"{key}={value}" for key, value in (("scale", self.scale), ("protocol", self.protocol))]
        return (
            *(override for override in chosen if not override.endswith("=paper")),
            *(["data=synthetic"] if self.synthetic else []),
            *self.overrides,
        )

    @property
    def note(self) -> str:
        """The name in brackets, behind the title of a table; runs that are no reproduction are called so."""
        return f" ({self.label}{'' if self.full else ': no reproduction'})" if self.label else ""

    @property
    def size(self) -> str:
        """The scale in the filter of the pages; synthetic data are a scale of their own."""
        return f"{self.scale}, synthetic data" if self.synthetic else self.scale

    @property
    def label(self) -> str:
        """A name for readers; empty for full scale, the papers' protocol and real data."""
        parts = ["measured by the project"] if self.project else []
        parts += [f"scale {self.scale}"] if self.scale != "paper" else []
        parts += [f"protocol {self.protocol}"] if self.protocol != "paper" else []
        return ", ".join([*parts, *(["synthetic data"] if self.synthetic else []), *self.overrides])


FLOAT32 = "32-true"
FULL = Scope()
PROJECT = Scope(project=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run. `key` is its folder below outputs/runs; `history` what it logged, by optimiser step.

    project: whether it is one of the runs that the project keeps (docs/results).
    """

    key: str
    record: Record
    command: str
    history: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    project: bool = False

    @property
    def scope(self) -> Scope:
        """From its record."""
        synthetic = bool(self.record.config.get("data", {}).get("synthetic"))
        return Scope(self.record.scale, self.record.protocol, synthetic, project=self.project)

    @property
    def precision(self) -> str:
        """In which it was trained: 32-true, bf16-mixed or 16-mixed."""
        return str(self.record.config["trainer"]["precision"])

    @property
    def monitor(self) -> str:
        """The name of the metric that picked its best epoch, without the split: accuracy."""
        return self.record.monitor


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The result of a cell in one scope.

    text: mean and standard deviation, or the text that was read; empty if nothing is known.
    values: by seed, in the unit of the table; the only key of a value without a seed is 0.
    baselines: scores that need no model, in the unit of the cell.
    measurement: where and when a measured value was taken.
    missing_data: which data its runs lack and how to get them; empty if none are missing.
    remarks: why a value is missing, or how it was measured.
    unusable: whether a finished run gave no value.
    """

    scope: Scope
    verdict: Verdict
    text: str = ""
    values: Mapping[int, float] = field(default_factory=dict)
    summary: Summary | None = None
    runs: Sequence[Run] = ()
    baselines: Mapping[str, float] = field(default_factory=dict)
    measurement: Mapping[str, str] = field(default_factory=dict)
    missing_data: str = ""
    remarks: Sequence[str] = ()
    unusable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResults:
    """One cell of a table in every scope that has a result, full scope first."""

    cell: Cell
    anchor: str
    command: str
    results: tuple[CellResult, ...]

    def within(self, scope: Scope) -> CellResult | None:
        """Its result in a scope; a protocol that is the default of the task is that of the runs without a choice."""
        if (found := next((result for result in self.results if result.scope == scope), None)) is not None:
            return found
        plain = replace(scope, protocol="paper")
        return next((r for r in self.results if r.scope == plain and {run.scope for run in r.runs} == {scope}), None)

    def fullest(self, scope: Scope) -> CellResult | None:
        """Its result in a scope with the most seeds: of two alike that of this machine, not of the project."""
        found = map(self.within, (scope, replace(scope, project=True)))
        known = [result for result in found if result is not None and result.summary is not None]
        return max(known, key=lambda result: len(result.values), default=None)

    @property
    def at_full_scale(self) -> CellResult | None:
        """The fullest result at full scale."""
        return self.fullest(FULL)

    @property
    def empty(self) -> bool:
        """Whether nothing is printed there and no run can fill it."""
        return self.cell.printed is None and bool(self.cell.unavailable)

    @property
    def decisive(self) -> CellResult:
        """The result whose verdict is the cell's: in full scope, else of the project, else of another scale."""
        found = [result for result in map(self.within, (FULL, PROJECT)) if result is not None and result.text]
        found += [result for result in self.results if result.verdict is Verdict.OTHER_SCALE]
        return found[0] if found else self.results[0]

    @property
    def verdict(self) -> Verdict:
        """The cell's verdict."""
        return self.decisive.verdict


KINDS = {
    "trained": "Results of training, of the papers", "measured": "Costs of the papers, counted or measured",
    "stated": "Settings and constants, and references over themselves: no experiment",
}  # fmt: skip
"""Kinds of cells with their headings; agreement has a different meaning for each."""

GROUPS = KINDS | {
    "other trained": "Tables of other papers, trained", "other measured": "Tables of other papers, counted or measured",
    "own trained": "The arena and other own tables, trained: no paper prints them",
    "own measured": "The arena and other own tables, counted or measured",
}  # fmt: skip
"""The kinds of the papers' cells, then those of other papers and of none, with their headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResults:
    """A table with the results of its cells."""

    table: Table
    command: str
    cells: Mapping[Place, CellResults]

    @property
    def paper(self) -> str:
        """The folder of its file: dba."""
        return self.table.name.partition("/")[0]

    @property
    def shown(self) -> list[CellResults]:
        """The cells of printed columns that are not empty."""
        columns = {column.name for column in self.table.columns}
        return [cell for cell in self.cells.values() if cell.cell.column in columns and not cell.empty]

    def within(self, scope: Scope) -> dict[Place, CellResult]:
        """The results of one scope."""
        found = {place: cell.within(scope) for place, cell in self.cells.items()}
        return {place: result for place, result in found.items() if result is not None}

    def kind(self, cell: CellResults) -> str:
        """One of KINDS; a mean has the kind of its parts."""
        filled = self.table.cells[cell.cell.mean[0]] if cell.cell.mean else cell.cell
        if not filled.measure or filled.of_run:
            return "trained"
        return "stated" if is_stated(filled) else "measured"

    def group(self, cell: CellResults) -> str:
        """One of GROUPS: the kind of a cell of the five papers, else whose table it is and whether it is trained."""
        whose = "other" if any(each.printed for each in self.table) else "own"
        if whose == "other" and self.table.counted:
            return self.kind(cell)
        return f"{whose} {'trained' if self.kind(cell) == 'trained' else 'measured'}"

    @property
    def scopes(self) -> list[Scope]:
        """Full scope, that of the project, and others, where a cell has a value in them."""
        found = {r.scope for cell in self.cells.values() for r in cell.results if r.text}
        return [FULL, *sorted(found - {FULL}, key=lambda scope: (scope != PROJECT, scope))]

    def counts(self) -> Counter[Verdict]:
        """How many cells have each verdict."""
        return Counter(cell.verdict for cell in self.shown)

    def filled(self, scope: Scope) -> int:
        """How many cells have a value in a scope."""
        return sum(bool((result := cell.within(scope)) and result.text) for cell in self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that cannot be read, or a run that failed, with the reason."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that the pages show.

    own: runs that fill no cell of a table. project: the runs that the project keeps. outdated: results of the project
    whose overrides compose to another configuration today. comparisons: pages of `compare.py`. project_benches: the
    benchmarks that the project keeps.
    """

    tables: Sequence[TableResults]
    runs: Sequence[Run]
    own: Sequence[Run]
    project: Sequence[Run]
    outdated: Sequence[Problem]
    broken: Sequence[Problem]
    failed: Sequence[Problem]
    unfinished: int
    pictures: Sequence[Path]
    benches: Sequence[Path]
    made: str
    comparisons: Sequence[Path] = ()
    project_benches: Sequence[Mapping[str, Any]] = ()

    @property
    def project_bench(self) -> Mapping[str, Any] | None:
        """The first of them, which has a page."""
        return next(iter(self.project_benches), None)

    @property
    def machines(self) -> list[tuple[Mapping[str, Any], int]]:
        """Each machine and how many runs it finished."""
        described = {str(sorted(run.record.machine.items(), key=str)): run.record.machine for run in self.runs}
        counts = Counter(str(sorted(run.record.machine.items(), key=str)) for run in self.runs)
        return [(described[key], count) for key, count in counts.most_common()]
