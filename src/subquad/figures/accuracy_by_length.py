"""Accuracy of trained classifiers on test sequences of each range of lengths."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from subquad.figures.base import Figure, Numbers, Words, Workshop
from subquad.figures.style import line_style, panels, say_missing


class AccuracyByLength(Figure):
    """`sides` (name: words of the run) share `words`; `edges` cut the lengths, the last range is closed.

    A dotted line is the accuracy over all test sequences.
    """

    def __init__(
        self, title: str, source: str, words: Sequence[str], sides: Mapping[str, Sequence[str]], edges: Sequence[int],
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.title, self.source, self.words, self.sides = title, source, words, sides
        self.edges, self.seed = edges, seed

    def runs(self) -> list[tuple[Words, int]]:
        return [([*self.words, *words], self.seed) for words in self.sides.values()]

    def measure(self, shop: Workshop) -> Numbers:
        sides = {}
        for side, words in self.sides.items():
            network = shop.network([*self.words, *words], self.seed)
            if network is not None:
                sides[side] = self._by_range(network, shop.data([*self.words, *words], self.seed))
        return {"edges": list(self.edges), "sides": sides, "missing": self.unfinished(shop)}

    @torch.no_grad()
    def _by_range(self, network: nn.Module, data: Any) -> Numbers:
        lengths, right = [], []
        for batch in data.test_dataloader():
            real = torch.ones(batch.inputs.shape[:2]) if batch.valid is None else batch.valid
            lengths.append(real.sum(1))
            right.append(network(*batch.network_inputs).argmax(-1) == batch.target)
        length, hit = torch.cat(lengths), torch.cat(right).double()
        found = []
        for low, high in itertools.pairwise(self.edges):
            inside = (length >= low) & ((length < high) | ((length == high) & (high == self.edges[-1])))
            found.append({"cases": int(inside.sum()), "accuracy": float(hit[inside].mean()) if inside.any() else None})
        return {"ranges": found, "accuracy": float(hit.mean()), "cases": len(hit)}

    def draw(self, numbers: Numbers) -> Any:
        figure, [[axes]] = panels(1, 1, width=6)
        edges = numbers["edges"]
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        for place, (side, found) in enumerate(numbers["sides"].items()):
            points = [
                (x, 100 * r["accuracy"])
                for x, r in zip(middles, found["ranges"], strict=True)
                if r["accuracy"] is not None
            ]
            style = line_style(place)
            axes.plot(*zip(*points, strict=True), label=f"{side} (mean {found['accuracy']:.1%})", **style)
            axes.axhline(100 * found["accuracy"], color=style["color"], linestyle=":", linewidth=1)
        axes.set(xlabel="tokens of the test sequence", ylabel="test accuracy, %")
        axes.set_xticks(edges)
        axes.grid(alpha=0.3)
        if numbers["sides"]:
            axes.legend(fontsize=8)
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
