"""Logged values of several runs, such as loss and accuracy, by optimiser step."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import line_style, panels, say_missing
from subquad.results.run_store import Overrides, RunStore

COLUMNS = 2


class LearningCurves(Figure):
    """A panel for each of `groups` and of `shown`, with a line for each run of the group and each seed.

    Args:
        groups: title of the panel to its runs, by name (name: overrides of the run). A single group has no title.
        overrides: shared by all runs.
        shown: names of logged values.
        logarithmic: names of values on a logarithmic scale.
    """

    def __init__(
        self, title: str, source: str, overrides: Sequence[str], groups: Mapping[str, Mapping[str, Sequence[str]]],
        shown: Sequence[str] = ("train/loss", "val/accuracy"), seeds: Sequence[int] = (0,), logarithmic: bool = False,
    ) -> None:  # fmt: skip
        self.title, self.source, self.overrides, self.groups = title, source, overrides, groups
        self.shown, self.seeds, self.logarithmic = shown, seeds, logarithmic

    def runs(self) -> list[tuple[Overrides, int]]:
        every = (tuple(overrides) for sides in self.groups.values() for overrides in sides.values())
        return [([*self.overrides, *overrides], seed) for overrides in dict.fromkeys(every) for seed in self.seeds]

    def measure(self, store: RunStore) -> Numbers:
        curves = {
            group: {side: curve for side, overrides in sides.items() if (curve := self._logged(store, overrides))}
            for group, sides in self.groups.items()
        }
        return {"curves": curves, "missing": self.unfinished(store)}

    def _logged(self, store: RunStore, overrides: Overrides) -> dict[str, dict[str, list[list[float]]]]:
        """Steps and values of a run by seed and name of the value, without seeds whose run has not finished."""
        histories = {seed: store.history([*self.overrides, *overrides], seed) for seed in self.seeds}
        return {
            str(seed): {
                name: [[step, row[name]] for step, row in history.items() if name in row] for name in self.shown
            }
            for seed, history in histories.items()
            if history is not None
        }

    def draw(self, numbers: Numbers) -> Any:
        from matplotlib.ticker import LogFormatter  # heavy, and needed once a figure

        places = list(itertools.product(self.groups, self.shown))
        figure, axes = panels(-(-len(places) // COLUMNS), min(COLUMNS, len(places)))
        for unused in axes.flat[len(places) :]:
            unused.set_axis_off()
        for (group, name), panel in zip(places, axes.flat, strict=False):
            found = numbers["curves"][group]
            for place, side in enumerate(self.groups[group]):
                for number, curve in enumerate(found.get(side, {}).values()):
                    label = side if number == 0 else None
                    panel.plot(*zip(*curve[name], strict=True), label=label, markersize=3, **line_style(place))
            panel.set(xlabel="optimiser steps", ylabel=name)
            if self.logarithmic:
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(LogFormatter())
                panel.yaxis.set_minor_formatter(LogFormatter())
            panel.set_title(group if len(self.groups) > 1 else "", fontsize=9)
            panel.grid(alpha=0.3)
            if found:
                panel.legend(fontsize=8)
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
