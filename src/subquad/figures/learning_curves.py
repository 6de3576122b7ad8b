"""Loss and accuracy of several runs by optimiser step, from what they logged."""

from collections.abc import Mapping, Sequence
from typing import Any

from subquad.figures.base import Figure, Numbers, Words, Workshop
from subquad.figures.style import line_style, panels, say_missing


class LearningCurves(Figure):
    """One line for each of `sides` (name: words of the run) and seed, and a panel for each of `shown`.

    words: those that all runs share. shown: names of logged values.
    """

    def __init__(
        self, title: str, source: str, words: Sequence[str], sides: Mapping[str, Sequence[str]],
        shown: Sequence[str] = ("train/loss", "val/accuracy"), seeds: Sequence[int] = (0,),
    ) -> None:  # fmt: skip
        self.title, self.source, self.words, self.sides = title, source, words, sides
        self.shown, self.seeds = shown, seeds

    def runs(self) -> list[tuple[Words, int]]:
        return [([*self.words, *words], seed) for seed in self.seeds for words in self.sides.values()]

    def measure(self, shop: Workshop) -> Numbers:
        curves: dict[str, dict[str, dict[str, list[list[float]]]]] = {}
        for side, words in self.sides.items():
            for seed in self.seeds:
                history = shop.history([*self.words, *words], seed)
                if history is not None:
                    curves.setdefault(side, {})[str(seed)] = {
                        name: [[step, row[name]] for step, row in history.items() if name in row] for name in self.shown
                    }
        return {"curves": curves, "missing": self.unfinished(shop)}

    def draw(self, numbers: Numbers) -> Any:
        figure, [axes] = panels(1, len(self.shown))
        for place, side in enumerate(self.sides):
            for number, curve in enumerate(numbers["curves"].get(side, {}).values()):
                for name, panel in zip(self.shown, axes, strict=True):
                    label = side if number == 0 else None
                    panel.plot(*zip(*curve[name], strict=True), label=label, markersize=3, **line_style(place))
        for name, panel in zip(self.shown, axes, strict=True):
            panel.set(xlabel="optimiser steps", ylabel=name)
            panel.grid(alpha=0.3)
            if numbers["curves"]:
                panel.legend(fontsize=8)
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
