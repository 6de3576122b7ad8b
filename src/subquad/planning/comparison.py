"""A comparison of attentions on one data set within a given time: search of the learning rate, then tested runs."""

import datetime
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from subquad import records
from subquad.config.compose import compose_run
from subquad.config.fingerprint import acting_limits
from subquad.config.overrides import as_override
from subquad.planning.budget import EpochPace, epochs_within, least_epochs
from subquad.records import Record, fingerprint, write_json
from subquad.results.cells import RunIndex, RunSpec
from subquad.results.measures import parameters, step_costs
from subquad.results.pairs import Pair, all_pairs, case_scores, half_widths, order
from subquad.sweep.progress import Shown
from subquad.sweep.runner import train_all
from subquad.sweep.workers import workers_for
from subquad.utils.cores import usable_cores
from subquad.utils.display import command_line, counted, duration
from subquad.utils.errors import UserError, explain

NONE = "none"
"""The row of the model without attention."""

STEP = "time and memory of a step"
"""The fact that says on which part of a batch they were measured."""

_PLAN = "plan.json"
_LIMITS = ("limits.epochs=", "limits.steps=")
_LEAST_ROWS = 5
"""Rows that each split needs; with fewer a score says nothing."""
_PILOT_STEPS = (40, 200)
"""Steps of the runs that measure the time: at least, and about the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row: its best rate, validation scores by rate (None: it failed), test scores by seed, and cost of a step.

    mean: of the test scores; half_width: of its 95 % interval over seeds and test rows. run: folder of the first seed.
    """

    name: str
    rate: float
    search: Mapping[float, float | None]
    values: Mapping[int, float]
    mean: float
    half_width: float
    cost: Mapping[str, float]
    run: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """What a comparison found, the best row first; scores in % for accuracy."""

    title: str
    folder: Path
    metric: str
    lower_is_better: bool
    rows: Sequence[ComparedRow]
    pairs: Sequence[Pair]
    baselines: Mapping[str, float]
    facts: Mapping[str, str]
    left_out: Mapping[str, str]


class Comparison:
    """The runs of a comparison, all of them ordinary runs in outputs/runs.

    overrides: what every run gets. attentions: a choice and further overrides each, `none` for no attention. rates:
    None for a third, once and three times the recipe's. hydra: of the launcher. named: whether the user has named the
    attentions; of others, those that cannot run on the task are left out.
    """

    def __init__(
        self, overrides: Sequence[str], attentions: Sequence[str], rates: Sequence[float] | None, seeds: int,
        hours: float, hydra: Sequence[str], named: bool,
    ) -> None:  # fmt: skip
        self.given = [*overrides, "protocol=clean"]
        self.runs = RunIndex(self.given)
        self.rows = {name: _overrides_of(name) for name in attentions}
        self.seeds, self.hours, self.hydra, self.named = range(1, seeds + 1), hours, list(hydra), named
        first = self.runs.compositions[*self.rows[attentions[0]], *self.runs.overrides]
        self.identity, self.outputs = first.identity, Path(first.outputs)
        self.runs.overrides = tuple(o for o in self.given if not o.startswith(_LIMITS))  # each run has its own
        own = float(first.module["optimizer"]["lr"])
        self.rates = sorted(rates or {float(f"{own * factor:.2g}") for factor in (1 / 3, 1, 3)})
        self.left_out: dict[str, str] = {}

    def train(self, console: Console) -> bool:
        """Trains what is missing, within the time; returns whether every row has all its tested runs."""
        started = time.monotonic()
        self._check_data()
        if not (self.folder / _PLAN).exists() and not self._make_plan(console, started):
            return False
        self.left_out, costs = self.plan["left_out"], self.plan["costs"]
        self.rows = {name: overrides for name, overrides in self.rows.items() if name in costs}
        for name, reason in self.left_out.items():
            console.print(f"Left out: {name}: {reason}", soft_wrap=True, markup=False)
        about = duration(self.plan["estimate"], 0)
        console.print(f"{self.size()}: about {about} on {counted(usable_cores(), 'core')}", soft_wrap=True)
        searched = self.searched()
        self._train({(name, f"{rate:g}"): [run] for (name, rate), run in searched.items()}, "search")
        if failed := [name for name in self.rows if not any(searched[name, rate].finished for rate in self.rates)]:
            console.print(f"No rate of {', '.join(failed)} has a finished run, so there is no comparison yet.")
            return False
        tested = self.tested()
        return not self._train({(name, "test"): runs for name, runs in tested.items()}, "test")

    def searched(self) -> dict[tuple[str, float], RunSpec]:
        """The run of each row and rate that the search validates; its seed, 0, is tested in no row."""
        length = self._length(self.plan["epochs"])
        return {
            (name, rate): self.runs.spec((*own, *length, f"optimizer.lr={rate:g}"), 0)
            for rate in self.rates
            for name, own in self.rows.items()
        }

    def scores(self) -> dict[str, dict[float, float | None]]:
        """The best validation score by row and rate; None where the run failed."""
        found: dict[str, dict[float, float | None]] = {name: {} for name in self.rows}
        for (name, rate), run in self.searched().items():
            record = self._record(run)
            found[name][rate] = None if record is None else self._in_unit(record.metrics[self.monitor])
        return found

    def best_rates(self) -> dict[str, float]:
        """The rate with the best validation score; of equal ones the lowest."""
        sign = -1 if self.lower_is_better else 1
        return {
            name: max((sign * score, -rate) for rate, score in scores.items() if score is not None)[1] * -1
            for name, scores in self.scores().items()
        }

    def tested(self) -> dict[str, list[RunSpec]]:
        """The runs of each row with its best rate."""
        return {name: [self.runs.spec(o, seed) for seed in self.seeds] for name, o in self._chosen().items()}

    def result(self) -> ComparisonResult:
        """The tested scores and their differences. Raises UserError for runs of other data than there are now."""
        from subquad.results.run_store import RunStore

        tested = self.tested()
        records_of = {name: [self._record(run) for run in runs] for name, runs in tested.items()}
        test, scores, rates = f"test/{self.metric}", self.scores(), self.best_rates()
        values = {
            name: {seed: self._in_unit(r.metrics[test]) for seed, r in zip(self.seeds, found, strict=True) if r}
            for name, found in records_of.items()
        }
        names = order(values, self.lower_is_better)
        values = {name: values[name] for name in names}
        store = RunStore(self.runs.overrides)
        cases = {name: case_scores(store, own, self.seeds) for name, own in self._chosen().items()}
        known = None if any(c is None for c in cases.values()) else {n: self._in_unit(c) for n, c in cases.items()}
        widths = half_widths(values, known)
        [first, *_] = [record for record in records_of[names[0]] if record is not None]
        return ComparisonResult(
            title=Path(self.place).name, folder=self.folder, metric=self.metric,
            lower_is_better=self.lower_is_better, pairs=all_pairs(values, known), left_out=self.left_out,
            rows=[
                ComparedRow(
                    name=n, rate=rates[n], search=scores[n], values=values[n],
                    mean=statistics.fmean(values[n].values()),
                    half_width=widths[n], cost=self.plan["costs"][n], run=tested[n][0].folder,
                )
                for n in names
            ],
            baselines={name: self._in_unit(score) for name, score in first.baselines.items()},
            facts=self._facts(first, sum(r.wall_seconds for found in records_of.values() for r in found if r)),
        )  # fmt: skip

    @property
    def monitor(self) -> str:
        """The validation metric that selects epochs and rates."""
        return str(self.identity["task"]["monitor"])

    @property
    def metric(self) -> str:
        """The name of the metric without its split."""
        return self.monitor.partition("/")[2]

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return bool(self.identity["task"]["mode"] == "min")

    @cached_property
    def data(self) -> Any:
        """The data, read; raises UserError for what cannot be."""
        from subquad.results.run_store import RunStore

        return RunStore(self.runs.overrides).data(next(iter(self.rows.values())))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The rows of each split."""
        return {split: len(self.data.splits[split]) for split in ("train", "val", "test")}

    @cached_property
    def folder(self) -> Path:
        """Of the plan and the page. Its name stands for the settings, the data and the code of the user's classes."""
        every = self.runs.compositions.all([(*own, *self.runs.overrides) for own in self.rows.values()])
        code = [composition.identity["code"] for composition in every if "code" in composition.identity]
        settings = [self.given, [*self.rows], self.rates, len(self.seeds), self.hours, self.data.fingerprint, *code]
        name = fingerprint({"comparison": settings})
        return self.outputs / "compare" / f"{self.title.replace('/', '-')}-{name}"

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The kept plan: epochs, estimate in seconds, cost of a step by row, and the rows left out with the reason."""
        return json.loads((self.folder / _PLAN).read_text(encoding="utf-8"))

    def _make_plan(self, console: Console, started: float) -> bool:
        """Measures and writes the plan; returns whether every row's short run has finished."""
        left_out, sides = dict[str, str](), {}
        for name, own in self.rows.items():
            try:
                parameters([*own, *self.runs.overrides], self.data.spec)
            except Exception as error:
                if (reason := explain(error)) is None:
                    raise
                if self.named:
                    raise UserError(f"{name} cannot run on {self.title}: {reason}") from None
                left_out[name] = str(reason)
            else:
                sides[name] = [*own, *self.runs.overrides]
        self.rows = {name: self.rows[name] for name in sides}
        console.print("Measuring a training step of each row.")
        costs = step_costs(sides, self.data.spec, self.batch, min(20.0, self.hours * 100))
        rounds = (len(self.rates), len(self.seeds))
        least = least_epochs(self.steps, self.most)
        # Refuses before the short runs what is hopeless; other programs can slow steps with several threads tenfold.
        alone = {name: cost["seconds"] * self.steps / 10 for name, cost in costs.items()}
        epochs_within(
            EpochPace(0, 0, alone, 1), self.hours * 3600, rounds, least, self.most, time.monotonic() - started
        )
        pace = self._pace(console)
        if pace is None:
            return False
        spent = time.monotonic() - started
        epochs = epochs_within(pace, self.hours * 3600, rounds, least, self.most, spent)
        write_json(self.folder / _PLAN, {
            "epochs": epochs, "estimate": pace.seconds(epochs, rounds), "costs": costs, "left_out": left_out,
        })  # fmt: skip
        return True

    def _pace(self, console: Console) -> EpochPace | None:
        """Trains each row for a moment, as it will be trained, in a folder apart; None if a run failed."""
        least, most = _PILOT_STEPS
        overrides = [f"paths.outputs={as_override(self._pilot)}"]
        if self.steps > most and not self.by_steps and "cases" in acting_limits(compose_run(self.runs.overrides)):
            overrides.append(f"limits.cases={most * int(self.data.batch_size)}")
        runs = RunIndex([*self.runs.overrides, *overrides])
        lengths = sorted({1, min(self.most, max(2, -(-least // self.steps)))}, reverse=True)
        pilot = {
            (n, epochs): runs.spec([*o, *self._length(epochs)], 0) for epochs in lengths for n, o in self.rows.items()
        }
        shutil.rmtree(self._pilot, ignore_errors=True)
        console.print("Measuring the time of short runs of each row.")
        began, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
        if train_all(list(pilot.values()), self.hydra):
            return None
        elapsed, first, walls = time.monotonic() - clock, math.inf, dict[str, dict[float, float]]()
        for (name, _), run in pilot.items():
            record = records.read(run.folder)
            assert record is not None
            first = min(first, datetime.datetime.fromisoformat(record.finished).timestamp() - record.wall_seconds)
            walls.setdefault(name, {})[record.steps / self.steps] = record.wall_seconds
        shutil.rmtree(self._pilot)
        return EpochPace.of(walls, elapsed, min(elapsed, max(0.0, first - began.timestamp())), self._at_once)

    @property
    def _pilot(self) -> Path:
        return self.folder / "pilot"

    @property
    def _at_once(self) -> int:
        """How many runs train at a time; 1 with another launcher than that of this machine, where it is unknown."""
        config = compose_run([*self.runs.overrides, *self.hydra])
        if any(o.startswith("hydra/launcher=") and not o.endswith("=workers") for o in self.hydra):
            return 1
        return workers_for(config.sweep.workers, config.trainer, len(self.rows)).count

    @property
    def title(self) -> str:
        """The name of the task."""
        return str(self.identity["task"]["name"])

    @property
    def place(self) -> str:
        """The path of the data, or their name."""
        data = self.identity["data"]
        return str(next((data[key] for key in ("folder", "train", "dataset") if data.get(key)), self.title))

    @property
    def by_steps(self) -> bool:
        """Whether the recipe counts steps and not epochs."""
        return bool(self.identity["trainer"]["max_steps"] >= 0)

    @property
    def steps(self) -> int:
        """Optimiser steps from one validation to the next, an epoch."""
        return int(self.data.steps_per_epoch or -(-self.sizes["train"] // self.data.batch_size))

    @property
    def batch(self) -> int:
        """The rows of an optimiser step."""
        return min(int(self.data.batch_size), self.sizes["train"])

    @property
    def part(self) -> str:
        """The part of a batch that a step was measured on, where the memory does not hold all of it; else empty."""
        rows = next(iter(self.plan["costs"].values()))["rows"]
        return "" if rows == self.batch else f"of {rows} of the {self.batch} rows of a batch, which fit the memory"

    @property
    def most(self) -> int:
        """The epochs of the recipe, more than which no run gets."""
        trainer = self.identity["trainer"]
        return max(1, trainer["max_steps"] // self.steps) if self.by_steps else int(trainer["max_epochs"])

    def _length(self, epochs: int) -> list[str]:
        return [f"limits.steps={epochs * self.steps}"] if self.by_steps else [f"limits.epochs={epochs}"]

    def _chosen(self) -> dict[str, list[str]]:
        """The overrides of each row with its best rate."""
        length = self._length(self.plan["epochs"])
        return {n: [*self.rows[n], *length, f"optimizer.lr={rate:g}"] for n, rate in self.best_rates().items()}

    def _train(self, cells: Mapping[tuple[str, str], list[RunSpec]], name: str) -> bool:
        """Trains the unfinished runs of cells; returns whether any failed."""
        jobs = [run for runs in cells.values() for run in runs if not run.finished]
        return bool(jobs) and train_all(jobs, self.hydra, [Shown(name, cells)])

    def _record(self, run: RunSpec) -> Record | None:
        record = records.read(run.folder)
        if record is not None and record.data_fingerprint not in (self.data.fingerprint, None):
            raise UserError(
                f"{run.folder} was trained on these files as they were before; delete that folder, or give the data "
                "another name."
            )
        return record

    def _check_data(self) -> None:
        """Raises UserError where there are too few rows."""
        for split, count in self.sizes.items():
            if count < _LEAST_ROWS:
                raise UserError(
                    f"The data have {counted(count, 'row')} for {split}, and a comparison needs {_LEAST_ROWS}; "
                    "add some, or keep more apart by data.val_fraction and data.test_fraction."
                )

    def _in_unit(self, score: Any) -> Any:
        return score * 100 if self.metric == "accuracy" else score

    def size(self) -> str:
        """The numbers of rows, runs and epochs in words."""
        runs = f"{counted(len(self.rates), 'rate')} + {counted(len(self.seeds), 'seed')}"
        return f"{counted(len(self.rows), 'row')} x ({runs}) x {counted(self.plan['epochs'], 'epoch')}"

    def _facts(self, record: Record, seconds: float) -> dict[str, str]:
        """What the heading of the page says, from the record of a tested run."""
        backbone = record.config["backbone"]
        sizes = [f"{key} {backbone[key]}" for key in ("layers", "dim", "heads", "ffn") if key in backbone]
        counts = ", ".join(f"{count:,} {split}" for split, count in self.sizes.items())
        classes = self.data.spec.classes
        kind = "numbers" if classes is None else f"{classes} classes"
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        return {
            "data": f"{self.place} ({self.title}): {counts} rows, {kind}",
            "model": f"{backbone['_target_'].rpartition('.')[2]}, recipe {record.recipe}: {', '.join(sizes)}",
            "budget": (
                f"{self.size()} of {counted(self.steps, 'step')}, in hours={self.hours:g}; rates {rates}, tried with "
                f"seed 0; tested with seeds {self.seeds[0]} to {self.seeds[-1]}; the tested runs trained for "
                f"{duration(seconds)} in all"
            ),
            **({STEP: part} if (part := self.part) else {}),
            "machine": ", ".join(f"{name} {value}" for name, value in record.machine.items() if value is not None),
            "versions": ", ".join(f"{name} {value}" for name, value in record.versions.items()),
            "command": command_line("python scripts/compare.py", sys.argv[1:]),
        }  # fmt: skip


def _overrides_of(row: str) -> list[str]:
    name, *settings = row.split()
    chosen = ["attention=softmax", "backbone.attention=null"] if name == NONE else [f"attention={name}"]
    return [*chosen, *settings]
