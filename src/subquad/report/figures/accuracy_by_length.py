"""Accuracy of trained classifiers on test sequences of each range of lengths."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import line_style, panels, say_missing
from subquad.results.run_store import Overrides, RunStore
from subquad.utils.errors import UserError


class AccuracyByLength(Figure):
    """A line for each of `sides` (name: overrides of the run).

    Args:
        overrides: shared by all runs.
        edges: limits of the ranges of length; the last range is closed.
        multiply: factors by which the test sequences of ListOps are made longer; one line each, the first one solid. A
            dotted line is the accuracy over all test sequences with the first factor.
    """

    def __init__(
        self, title: str, source: str, overrides: Sequence[str], sides: Mapping[str, Sequence[str]],
        edges: Sequence[int], seed: int = 0, multiply: Sequence[int] = (1,),
    ) -> None:  # fmt: skip
        self.title, self.source, self.overrides, self.sides = title, source, overrides, sides
        self.edges, self.seed, self.multiply = edges, seed, multiply

    def runs(self) -> list[tuple[Overrides, int]]:
        return [([*self.overrides, *overrides], self.seed) for overrides in self.sides.values()]

    def measure(self, store: RunStore) -> Numbers:
        missing = self.unfinished(store)
        sides: dict[str, dict[str, Numbers]] = {}
        for side, factor in itertools.product(self.sides, self.multiply):
            overrides = [*self.overrides, *self.sides[side]]
            changes = {} if factor == 1 else {"multiply": factor}
            try:
                network = store.network(overrides, self.seed, changes=changes)
            except UserError as error:
                missing.append(f"{side}, x{factor}: {error}")
                continue
            if network is not None:
                found = self._by_range(network, store.data(overrides, self.seed, changes))
                sides.setdefault(side, {})[str(factor)] = found
                if outside := found["cases"] - sum(part["cases"] for part in found["ranges"]):
                    missing.append(f"{side}, x{factor}: {outside} of {found['cases']} sequences lie outside of edges")
        return {"edges": list(self.edges), "sides": sides, "missing": missing}

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
        for place, side in enumerate(self.sides):
            style, lines = line_style(place), numbers["sides"].get(side, {})
            means = ", ".join(f"x{factor} {found['accuracy']:.1%}" for factor, found in lines.items())
            for number, found in enumerate(lines.values()):
                shown = [(x, r["accuracy"]) for x, r in zip(middles, found["ranges"], strict=True) if r["cases"]]
                axes.plot(
                    [x for x, _ in shown], [100 * y for _, y in shown], linestyle="--" if number else "-",
                    label=None if number else f"{side} ({means})", **style,
                )  # fmt: skip
                if not number:
                    axes.axhline(100 * found["accuracy"], color=style["color"], linestyle=":", linewidth=1)
        axes.set(xlabel="tokens of the test sequence", ylabel="test accuracy, %", xlim=(edges[0], edges[-1]))
        axes.grid(alpha=0.3)
        if numbers["sides"]:
            axes.legend(fontsize=8)
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
