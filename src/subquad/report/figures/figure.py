"""What a figure is: the runs it needs, the numbers it measures, and how they are drawn."""

import abc
from typing import Any

from subquad.results.run_store import RunStore, Words

Numbers = dict[str, Any]
"""What a figure shows, as JSON can hold it; what could not be measured is None, and `missing` says why."""


class Figure(abc.ABC):
    """One figure of a paper. Its YAML, configs/figure/<paper>/<number>.yaml, holds the arguments of the constructor.

    title, source: what is shown, and where it stands in print.
    """

    title: str
    source: str

    def runs(self) -> list[tuple[Words, int]]:
        """The runs that are needed, by words and seed; none where all is measured."""
        return []

    @abc.abstractmethod
    def measure(self, store: RunStore) -> Numbers:
        """The numbers behind the picture; `missing` lists what there is none for, in words."""

    @abc.abstractmethod
    def draw(self, numbers: Numbers) -> Any:
        """A matplotlib figure of what `measure` returned."""

    def unfinished(self, store: RunStore) -> list[str]:
        """A sentence for each run that has not ended, with the command that trains it."""
        return [
            f"not run: {store.command(words, seed)}" for words, seed in self.runs() if not store.metrics(words, seed)
        ]
