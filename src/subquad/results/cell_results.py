"""The results of the cells of tables in one scope: from runs, a measurement, or the cells that a mean averages."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subquad import records
from subquad.config.choices import hint
from subquad.config.mechanisms import choice_of
from subquad.config.task_metadata import chosen
from subquad.records import Measurement
from subquad.results.cells import RunIndex, seeds_of
from subquad.results.mean import mean_values
from subquad.results.model import FLOAT32, FULL, CellResult, Run, Scope
from subquad.results.scan import read_run
from subquad.results.statistics import summarise
from subquad.results.table import Cell, Place, Table
from subquad.results.verdict import Verdict, cell_verdict
from subquad.utils.errors import UserError

_DATA_OVERRIDES = ("task=", "experiment=", "recipe=", "data", "limits.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Computes the results of tables in one scope.

    Args:
        scope: which runs count.
        runs: the runs of cells in this scope.
        read: the run of a folder, or None if it has not finished; raises UserError if its record is of no use.
        evaluation: the metrics of the run of a folder on changed data, or None.
        measured: the measurement of a cell, or None.
        failures: why cells could not be measured.
        seeds: None for as many as each cell declares.
        known: task and attention of the finished runs; cells that can be none of them are not composed. None: unknown.
        precisions: mixed ones in which runs may have been trained. They fill a cell for which float32 has fewer seeds.
    """

    scope: Scope
    runs: RunIndex
    read: Callable[[Path], Run | None] = read_run
    evaluation: Callable[[Path, Mapping[str, Any]], Mapping[str, float] | None] = records.read_evaluation
    measured: Callable[[Cell], Measurement | None]
    failures: Mapping[Place, str] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    known: Set[tuple[str, str]] | None = None
    precisions: Sequence[str] = ()
    first: dict[tuple[tuple[str, ...], ...], Run] = field(default_factory=dict)
    """The first run with some data, with whose data those of the other runs are compared."""

    def compose(self, tables: Iterable[Table]) -> None:
        """Composes all that these tables need together, which is quicker than one by one."""
        cells = [cell for table in tables for cell in table if cell.trained]
        self.runs.compose(cell for cell in cells if self._possible(cell))

    def results(self, table: Table) -> dict[Place, CellResult]:
        """The result of each cell; in a scope other than the full one, only of those that have runs or a value."""
        own = {place: self._cell(cell) for place, cell in table.cells.items() if not cell.mean}
        every = {p: self._mean(cell, own) if cell.mean else own[p] for p, cell in table.cells.items()}
        if self.known is None or self.scope == FULL:
            return every
        return {place: result for place, result in every.items() if result.text or result.runs}

    def _cell(self, cell: Cell) -> CellResult:
        if cell.measure and not cell.unavailable:
            return self._measurement(cell)
        if cell.trained and self._possible(cell):
            return self._trained(cell)
        return self._result(cell, {}, missing_data=self._missing_data(cell))

    def _trained(self, cell: Cell) -> CellResult:
        result = self._in_precision(cell)
        for precision in () if cell.init_from else self.precisions:
            if len(result.values) < len(seeds_of(cell, self.seeds)):
                result = max(result, self._in_precision(cell, precision), key=lambda one: len(one.values))
        return result

    def _in_precision(self, cell: Cell, precision: str = "") -> CellResult:
        values, runs, unusable = {}, [], []
        for seed in seeds_of(cell, self.seeds):
            folder = self.runs.run_of(cell, seed, precision).folder
            try:
                if (run := self.read(folder)) is None:
                    continue
                runs.append(run)
                first = self.first.setdefault(tuple(data_of(cell)), run)
                if run.record.data_fingerprint != first.record.data_fingerprint:
                    raise UserError(f"{folder} was trained on other data than {first.key}; train one of them again.")
                metrics = self.evaluation(folder, cell.eval_data) if cell.eval_data else run.record.metrics
                value = (metrics or {}).get(cell.metric.name)
                if value is None and metrics:
                    name = cell.metric.name
                    raise UserError(f"The record of {folder} has no metric {name}; {hint(name, sorted(metrics))}")
                if value is not None and not math.isfinite(value):
                    raise UserError(f"{cell.metric.name} of the run {folder} is {value}, which no mean can take.")
            except UserError as error:
                unusable.append(str(error))
                continue
            if value is not None:
                values[seed] = value * cell.metric.scale_by
        return self._result(
            cell, values, runs=runs, remarks=[*map("Trained in {}.".format, mixed_precisions(runs)), *unusable],
            unusable=bool(unusable), baselines=_baselines(cell, runs),
            missing_data="" if values else self._missing_data(cell),
        )  # fmt: skip

    def _measurement(self, cell: Cell) -> CellResult:
        if (found := self.measured(cell)) is None:
            return self._result(cell, {}, remarks=[self.failures[cell.place]] if cell.place in self.failures else [])
        remarks, facts = [found.note] if found.note else [], _facts(found)
        if isinstance(found.value, str):
            verdict = Verdict.NOT_PRINTED
            return CellResult(scope=self.scope, verdict=verdict, text=found.value, measurement=facts, remarks=remarks)
        return self._result(cell, {0: found.value * cell.metric.scale_by}, measurement=facts, remarks=remarks)

    def _mean(self, cell: Cell, parts: Mapping[Place, CellResult]) -> CellResult:
        """The mean of other cells; it lacks the data that the first incomplete one of them lacks."""
        averaged = [parts[part] for part in cell.mean]
        values = mean_values([part.values for part in averaged])
        missing = "" if values else next((part.missing_data for part in averaged if part.missing_data), "")
        stated = all(part.verdict is Verdict.AS_PRINTED for part in averaged)
        return self._result(cell, values, missing_data=missing, stated=stated)

    def _result(
        self, cell: Cell, values: Mapping[int, float], *, missing_data: str = "", stated: bool | None = None,
        **known: Any,
    ) -> CellResult:  # fmt: skip
        summary = summarise(values) if values else None
        verdict = cell_verdict(cell, values, self.scope.full, bool(missing_data), stated)
        return CellResult(
            scope=self.scope, verdict=verdict, values=values,
            text=summary.text(cell.digits) if summary else "", summary=summary, missing_data=missing_data, **known,
        )  # fmt: skip

    def _possible(self, cell: Cell) -> bool:
        """Whether a finished run may be a cell's: the task and the mechanism of its overrides decide, if any."""
        if self.known is None:
            return True
        given = chosen(cell.overrides)
        task, attention, backbone = given.get("task"), given.get("attention"), given.get("backbone", "")
        if given.get("backbone.attention") == "null":
            attention = "none"
        elif choice_of("backbone", backbone) is not None:
            attention = backbone
        return any(task in (None, t) and attention in (None, a) for t, a in self.known)

    def _missing_data(self, cell: Cell) -> str:
        """Which data the cell's runs lack; "" if none.

        With `known`, asked with the overrides that choose data, which many cells share.
        """
        if not cell.trained:
            return ""
        if self.known is None:
            return self.runs.missing_data(self.runs.run_of(cell, 0)) or ""
        if self.scope != FULL:
            return ""
        reasons = (self.runs.missing_data(self.runs.spec(data, 0)) for data in data_of(cell))
        return next((reason for reason in reasons if reason), "")


def mixed_precisions(runs: Iterable[Run]) -> list[str]:
    """The precisions of runs beside float32."""
    return sorted({run.precision for run in runs} - {FLOAT32})


def data_of(cell: Cell) -> list[tuple[str, ...]]:
    """The overrides that choose the data of a cell's run, and of the run that it starts from; none without a run."""
    if not cell.trained:
        return []
    return [
        tuple(override for override in overrides if override.startswith(_DATA_OVERRIDES))
        for overrides in (cell.overrides, cell.init_from)
        if overrides
    ]


def _baselines(cell: Cell, runs: Iterable[Run]) -> dict[str, float]:
    """Scores without a model, of the last run, if the cell shows the metric that picks the best epoch.

    They are scores on the run's own test split, so that a cell of other data has none.
    """
    baselines: dict[str, float] = {}
    for run in () if cell.eval_data else runs:
        if cell.metric.name == f"test/{run.monitor}":
            baselines |= {name: score * cell.metric.scale_by for name, score in run.record.baselines.items()}
    return baselines


def _facts(measurement: Measurement) -> dict[str, str]:
    """Where, when and with what a value was measured, and how if not as the table asks."""
    machine, versions = measurement.machine or {}, measurement.versions or {}
    return {
        "machine": str(machine.get("gpu") or machine.get("cpu") or ""), "torch": str(versions.get("torch", "")),
        "commit": str(measurement.commit), "measured": str(measurement.finished), "note": str(measurement.note),
    }  # fmt: skip
