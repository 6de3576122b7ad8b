"""Accuracy against speed, memory as the area of a bubble."""

from collections.abc import Mapping, Sequence
from typing import Any

from subquad.measure.benchmark import Setting, measure
from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import COLOURS, panels, say_missing
from subquad.results.run_store import Overrides, RunStore


class Bubbles(Figure):
    """One panel for each of `lengths`. Accuracy is the mean over `tasks` (overrides of runs), if all have finished.

    Args:
        attentions: name to overrides of runs. The first is the reference of speed and memory, which are measured on a
            model of `sizes`. An attention that was not trained on all tasks is drawn below the axis, at its speed.
    """

    def __init__(
        self, title: str, source: str, attentions: Mapping[str, str], tasks: Sequence[Sequence[str]],
        lengths: Sequence[int], sizes: Mapping[str, Any], overrides: Sequence[str] = (), seed: int = 0, rounds: int = 3,
    ) -> None:  # fmt: skip
        self.title, self.source, self.attentions, self.tasks = title, source, attentions, tasks
        self.lengths, self.sizes, self.overrides, self.seed, self.rounds = lengths, sizes, overrides, seed, rounds

    def _words(self, name: str) -> list[Overrides]:
        return [[*self.overrides, *task, f"attention={_trained_as(self.attentions[name])}"] for task in self.tasks]

    def runs(self) -> list[tuple[Overrides, int]]:
        return [(overrides, self.seed) for name in self.attentions for overrides in self._words(name)]

    def measure(self, store: RunStore) -> Numbers:
        factories = {name: store.attention(choice) for name, choice in self.attentions.items()}
        first = next(iter(self.attentions))
        costs = {}
        for length in self.lengths:
            found = measure(
                factories, Setting(level="model", mode="inference", length=length, **self.sizes), self.rounds
            )
            costs[str(length)] = {
                name: {
                    "speed": found[first].timing.ratio(found[name].timing),
                    "memory": found[name].peak / found[first].peak,
                }
                for name in self.attentions
            }
        accuracy = {}
        for name in self.attentions:
            records = [store.metrics(overrides, self.seed) for overrides in self._words(name)]
            known = [metrics["test/accuracy"] for metrics in records if metrics is not None]
            accuracy[name] = sum(known) / len(known) if known and len(known) == len(records) else None
        return {"costs": costs, "accuracy": accuracy, "missing": self.unfinished(store)}

    def draw(self, numbers: Numbers) -> Any:
        figure, [axes] = panels(1, len(self.lengths), width=5, height=4)
        known = [100 * v for v in numbers["accuracy"].values() if v is not None]
        low, high = (min(known) - 2, max(known) + 2) if known else (0.0, 1.0)
        floor = low - 0.15 * (high - low)
        for panel, length in zip(axes, self.lengths, strict=True):
            for place, (name, cost) in enumerate(numbers["costs"][str(length)].items()):
                accuracy = numbers["accuracy"][name]
                trained = accuracy is not None
                y = 100 * accuracy if trained else floor
                colour = COLOURS[place % len(COLOURS)]
                panel.scatter(
                    cost["speed"], y, s=600 * cost["memory"], alpha=0.6 if trained else 0.9,
                    facecolors=colour if trained else "none", edgecolors=colour, linewidths=1.2,
                )  # fmt: skip
                panel.annotate(
                    name, (cost["speed"], y), fontsize=7, rotation=0 if trained else 90, ha="center", va="bottom",
                    xytext=(0, 6), textcoords="offset points",
                )  # fmt: skip
            panel.axhline(low, color="0.5", linewidth=0.8)
            label = "mean test accuracy, %\n(hollow, below the line: not trained)" if known else "no run has ended"
            panel.set(
                xscale="log", xlabel=f"speed over {next(iter(self.attentions))}, n = {length:,}", ylabel=label,
                ylim=(floor - 0.1 * (high - low), high),
            )  # fmt: skip
            panel.set_yticks([t for t in panel.get_yticks() if low <= t <= high] if known else [])
            panel.grid(alpha=0.3)
        figure.suptitle(f"{self.title}; area: memory over {next(iter(self.attentions))}", fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure


def _trained_as(choice: str) -> str:
    """The choice of the runs: explicit softmax is trained as softmax with the fused kernel."""
    return "softmax" if choice == "softmax_explicit" else choice
