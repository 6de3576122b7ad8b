"""A grid of runs over two settings, each cell the mean test metric over seeds."""

from collections.abc import Sequence
from typing import Any

from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import SEQUENTIAL, panels, say_missing
from subquad.results.run_store import Overrides, RunStore
from subquad.utils.display import is_share


class RunGrid(Figure):
    """A run for each value of `row_key` and of `column_key` (keys such as attention.segment) and for each seed.

    Args:
        overrides: shared by all runs.
        metric: of the records, in percent if it is an accuracy; a cell is the mean over the seeds that have run.
    """

    def __init__(
        self, title: str, source: str, overrides: Sequence[str], row_key: str, rows: Sequence[int], column_key: str,
        columns: Sequence[int], metric: str = "test/accuracy", seeds: Sequence[int] = (0,),
    ) -> None:  # fmt: skip
        self.title, self.source, self.overrides, self.metric, self.seeds = title, source, overrides, metric, seeds
        self.row_key, self.rows, self.column_key, self.columns = row_key, rows, column_key, columns

    def _overrides(self, row: int, column: int) -> Overrides:
        return [*self.overrides, f"{self.row_key}={row}", f"{self.column_key}={column}"]

    def runs(self) -> list[tuple[Overrides, int]]:
        return [
            (self._overrides(row, column), seed) for seed in self.seeds for row in self.rows for column in self.columns
        ]

    def measure(self, store: RunStore) -> Numbers:
        values = [[self._mean(store, self._overrides(row, column)) for column in self.columns] for row in self.rows]
        return {
            "rows": list(self.rows), "columns": list(self.columns), "values": values, "missing": self.unfinished(store),
        }  # fmt: skip

    def _mean(self, store: RunStore, overrides: Overrides) -> float | None:
        found = [metrics[self.metric] for seed in self.seeds if (metrics := store.metrics(overrides, seed)) is not None]
        return sum(found) / len(found) if found else None

    def draw(self, numbers: Numbers) -> Any:
        figure, [[axes]] = panels(1, 1, width=5.2, height=4.2)
        percent = is_share(self.metric)
        cells = [[float("nan") if v is None else v * (100 if percent else 1) for v in r] for r in numbers["values"]]
        axes.set_facecolor("0.9")
        image = axes.imshow(cells, cmap=SEQUENTIAL, aspect="auto")
        known = [v for line in cells for v in line if v == v]
        middle = (min(known) + max(known)) / 2 if known else 0.0
        for i, line in enumerate(cells):
            for j, value in enumerate(line):
                text, colour = (
                    (f"{value:.1f}", "white" if value < middle else "black") if value == value else ("–", "0.3")
                )
                axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(len(self.columns)), numbers["columns"])
        axes.set_yticks(range(len(self.rows)), numbers["rows"])
        axes.set(xlabel=self.column_key, ylabel=self.row_key)
        if known:
            figure.colorbar(image, ax=axes, label=f"{self.metric}{', %' if percent else ''}")
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
