"""Time and memory of models with different attentions as the sequences grow."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from subquad.measure.benchmark import Level, Mode, Setting, measure
from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import lengths_axis, line_style, panels, say_missing
from subquad.results.run_store import RunStore


class CostByLength(Figure):
    """`sides` (name: [attention, its overrides]) are measured on this machine at every length that they support.

    Args:
        batch: rows.
        tokens: rows times length, kept constant in place of `batch`.
        longest: by name, the length from which a side is left out.
        sizes: dim, heads, ffn and layers of the model.
        shown: quantities with a panel of their own; seconds are those of one row.
    """

    def __init__(
        self, title: str, source: str, sides: Mapping[str, Sequence[str]], lengths: Sequence[int],
        sizes: Mapping[str, Any], level: Level = "model", mode: Mode = "inference", batch: int = 1,
        tokens: int | None = None, longest: Mapping[str, int] | None = None, rounds: int = 3,
        shown: Sequence[Literal["seconds", "memory"]] = ("seconds", "memory"), device: str = "cpu",
    ) -> None:  # fmt: skip
        self.title, self.source, self.sides, self.lengths, self.sizes = title, source, sides, lengths, sizes
        self.level, self.mode, self.batch, self.tokens = level, mode, batch, tokens
        self.longest, self.rounds, self.shown, self.device = longest or {}, rounds, shown, device

    def measure(self, store: RunStore) -> Numbers:
        sides: dict[str, dict[str, Numbers]] = {name: {} for name in self.sides}
        missing = []
        factories = {name: self._factory(store, name) for name in self.sides}
        for length in self.lengths:
            batch = self.batch if self.tokens is None else max(1, self.tokens // length)
            fits = [name for name in self.sides if length <= self.longest.get(name, length)]
            missing += [
                f"{name} at {length:,} tokens: not measured (longest)" for name in self.sides if name not in fits
            ]
            setting = Setting(
                level=self.level, mode=self.mode, length=length, batch=batch, device=self.device, **self.sizes
            )
            found = measure({name: factories[name] for name in fits}, setting, self.rounds)
            for name in fits:
                costs = found[name]
                sides[name][str(length)] = {
                    "seconds_per_row": costs.timing.median / batch, "bytes_per_row": costs.peak / batch, "rows": batch,
                }  # fmt: skip
        return {"sides": sides, "missing": missing}

    def _factory(self, store: RunStore, name: str) -> Any:
        attention, *overrides = self.sides[name]
        sizes = [f"backbone.{key}={value}" for key, value in self.sizes.items() if key in ("dim", "heads", "ffn")]
        return store.attention(attention, [*sizes, *overrides])

    def draw(self, numbers: Numbers) -> Any:
        figure, [axes] = panels(1, len(self.shown))
        units = {"seconds": ("seconds_per_row", 1e3, "milliseconds a sequence"),
                 "memory": ("bytes_per_row", 2**-20, "MiB a sequence, peak of live tensors")}  # fmt: skip
        for panel, what in zip(axes, self.shown, strict=True):
            key, factor, label = units[what]
            for place, (name, line) in enumerate(numbers["sides"].items()):
                costs = {int(n): found[key] * factor for n, found in line.items()}
                panel.plot(list(costs), list(costs.values()), label=name, markersize=4, **line_style(place))
            panel.set_yscale("log")
            lengths_axis(panel, self.lengths)
            panel.set_ylabel(label)
            panel.legend(fontsize=8)
        rows = f"{self.tokens:,} tokens a batch" if self.tokens else f"batch {self.batch}"
        figure.suptitle(f"{self.title} ({self.level}, {self.mode}, {rows}, {self.device})", fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure
