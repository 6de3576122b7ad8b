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
    """A panel for each factor of `multiply`, in it a line for each of `sides` (name: overrides of the run).

    A dotted line is the accuracy over all test sequences of the panel.

    Args:
        overrides: shared by all runs.
        edges: limits of the ranges of length; the last range is closed.
        multiply: factors by which the test sequences of ListOps are made longer; 1 for other tasks.
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
        figure, [row] = panels(1, len(self.multiply), width=3.4, sharey=True)
        middles = [(low + high) / 2 for low, high in itertools.pairwise(numbers["edges"])]
        for axes, factor in zip(row, self.multiply, strict=True):
            for place, side in enumerate(self.sides):
                if (found := numbers["sides"].get(side, {}).get(str(factor))) is None:
                    continue
                shown = [(x, r["accuracy"]) for x, r in zip(middles, found["ranges"], strict=True) if r["cases"]]
                style = line_style(place)
                axes.plot(
                    [x for x, _ in shown], [100 * y for _, y in shown], label=f"{side}, {found['accuracy']:.1%}",
                    **style,
                )  # fmt: skip
                axes.axhline(100 * found["accuracy"], color=style["color"], linestyle=":", linewidth=1)
            axes.set(title="test set" if factor == 1 else f"{factor} copies under one MAX", xlabel="tokens")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize=8)
        row[0].set(ylabel="accuracy, %")
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
