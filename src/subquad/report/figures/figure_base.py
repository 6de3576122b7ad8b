"""The interface of a figure: the runs it needs, the numbers it measures, and how they are drawn."""

import abc
from typing import Any

from subquad.results.run_store import Overrides, RunStore

Numbers = dict[str, Any]
"""The numbers of a figure in types of JSON; one that could not be measured is None, and `missing` says why."""


class Figure(abc.ABC):
    """One figure of a paper. Its YAML, configs/figure/<paper>/<number>.yaml, holds the arguments of the constructor.

    title, source: what is shown, and where it is printed.
    """

    title: str
    source: str

    def runs(self) -> list[tuple[Overrides, int]]:
        """The runs that it needs, by overrides and seed; none if all is measured."""
        return []

    @abc.abstractmethod
    def measure(self, store: RunStore) -> Numbers:
        """The numbers of the picture; `missing` lists sentences about those that there are none for."""

    @abc.abstractmethod
    def draw(self, numbers: Numbers) -> Any:
        """A matplotlib figure of what `measure` returned."""

    def unfinished(self, store: RunStore) -> list[str]:
        """A sentence for each run that has not finished, with the command that trains it."""
        return [
            f"not run: {store.command(overrides, seed)}"
            for overrides, seed in self.runs()
            if not store.metrics(overrides, seed)
        ]
