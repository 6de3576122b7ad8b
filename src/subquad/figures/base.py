"""What a figure is: the runs it needs, the numbers it measures, and how they are drawn."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn

Words = Sequence[str]
"""Words of a command line of train.py that make a run what it is: [task=lra/listops, attention=dba]."""

Numbers = dict[str, Any]
"""What a figure shows, as JSON can hold it; what could not be measured is None, and `missing` says why."""


class Workshop(Protocol):
    """What figures ask of the floor above: mechanisms by name, and runs by their words.

    What it knows of a run that has not ended is None.
    """

    def attention(self, name: str, words: Words = ()) -> Any:
        """The factory of a choice of configs/attention, as a backbone is given it."""

    def metrics(self, words: Words, seed: int = 0) -> Mapping[str, float] | None:
        """The metrics of a run's record."""

    def scores(self, words: Words, seed: int = 0) -> Mapping[str, float] | None:
        """Scores on a run's test split that need no model."""

    def history(self, words: Words, seed: int = 0) -> Mapping[int, Mapping[str, float]] | None:
        """What a run logged, by optimiser step."""

    def data(self, words: Words, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Any:
        """The data module of a run, with some of its settings changed, ready to be asked for batches."""

    def network(
        self, words: Words, seed: int = 0, trained: bool = True, changes: Mapping[str, Any] | None = None
    ) -> nn.Module | None:
        """The network of a run, with the weights of its best checkpoint or with those that it started from.

        Raises UserError where these weights do not fit data with settings changed.
        """

    def command(self, words: Words, seed: int = 0) -> str:
        """The command line that trains a run."""


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
    def measure(self, shop: Workshop) -> Numbers:
        """The numbers behind the picture; `missing` lists what there is none for, in words."""

    @abc.abstractmethod
    def draw(self, numbers: Numbers) -> Any:
        """A matplotlib figure of what `measure` returned."""

    def unfinished(self, shop: Workshop) -> list[str]:
        """A sentence for each run that has not ended, with the command that trains it."""
        return [f"not run: {shop.command(words, seed)}" for words, seed in self.runs() if not shop.metrics(words, seed)]
