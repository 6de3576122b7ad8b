"""How far DBA's W_r spreads over the tokens in each layer, with the first weights and with the trained ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from subquad.measure.analysis.concentration import concentration
from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import line_style, panels, say_missing
from subquad.results.run_store import Overrides, RunStore

SHOWN = {
    "entropy": "entropy of a row over log(tokens)",
    "largest": "largest weight of a row",
    "distinct": "number of distinct rows",
}


class Concentration(Figure):
    """A line for each of `sides` (name: overrides of the run); dashed: with the initial weights.

    Args:
        overrides: shared by all runs.
        rows: how many test sequences are averaged over, the first ones.
        seeds: the drawn values are means over seeds; the numbers hold each seed's, with its test accuracy.
    """

    def __init__(
        self, title: str, source: str, overrides: Sequence[str], sides: Mapping[str, Sequence[str]],
        rows: int = 256, seeds: Sequence[int] = (0,),
    ) -> None:  # fmt: skip
        self.title, self.source, self.overrides, self.sides = title, source, overrides, sides
        self.rows, self.seeds = rows, seeds

    def runs(self) -> list[tuple[Overrides, int]]:
        return [([*self.overrides, *overrides], seed) for seed in self.seeds for overrides in self.sides.values()]

    def measure(self, store: RunStore) -> Numbers:
        sides: dict[str, dict[str, Any]] = {}
        for side, overrides in self.sides.items():
            for seed in self.seeds:
                run = [*self.overrides, *overrides]
                metrics = store.metrics(run, seed)
                trained = store.network(run, seed) if metrics else None
                if not metrics or trained is None:
                    continue
                networks = {"trained": trained, "first weights": store.network(run, seed, trained=False)}
                dataset = store.data(run, seed).batched("test")
                places = list(range(min(self.rows, len(dataset))))
                batches = [dataset.__getitems__(places[i : i + 32]).network_inputs for i in places[::32]]
                found: dict[str, Any] = {"test/accuracy": metrics.get("test/accuracy")}
                found |= {name: concentration(network, batches) for name, network in networks.items() if network}
                sides.setdefault(side, {})[str(seed)] = found
        return {"sides": sides, "missing": self.unfinished(store)}

    def draw(self, numbers: Numbers) -> Any:
        figure, [axes] = panels(1, len(SHOWN))
        for place, side in enumerate(self.sides):
            runs = numbers["sides"].get(side, {}).values()
            for (what, label), panel in zip(SHOWN.items(), axes, strict=True):
                for name in ("trained", "first weights") if runs else ():
                    layers = zip(*(run[name][what] for run in runs), strict=True)
                    means = [sum(values) / len(values) for values in layers]
                    style = {"label": side} if name == "trained" else {"linestyle": "--", "alpha": 0.5}
                    panel.plot(range(len(means)), means, **style, **line_style(place))
                    panel.set_xticks(range(len(means)))
                panel.set(xlabel="layer", ylabel=label)
                panel.set_ylim(bottom=0)
                panel.grid(alpha=0.3)
        if numbers["sides"]:
            axes[0].legend(fontsize=7)
        figure.suptitle(f"{self.title} (dashed: first weights)", fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
