"""Operations and memory of one attention divided by those of another, over width and length."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from subquad.measure.benchmark import Mode, Setting, peak_of, program_of
from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import lengths_axis, line_style, panels
from subquad.results.run_store import RunStore


class CostRatios(Figure):
    """Multiply-adds of matrix products, and peak bytes of live tensors, of a model on one sequence of token ids.

    Args:
        ours: [attention, its overrides].
        baseline: the same; softmax_explicit for softmax with the n x n weights of its paper.
        sizes: heads and layers of the models; ffn is twice the width.
    """

    modes: tuple[Mode, ...] = ("inference", "training")

    def __init__(
        self, title: str, source: str, ours: Sequence[str], baseline: Sequence[str], dims: Sequence[int],
        lengths: Sequence[int], sizes: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.title, self.source, self.ours, self.baseline = title, source, ours, baseline
        self.dims, self.lengths, self.sizes = dims, lengths, sizes

    def measure(self, store: RunStore) -> Numbers:
        rows = []
        for mode in self.modes:
            for dim in self.dims:
                sides = [self._factory(store, side, dim) for side in (self.ours, self.baseline)]
                for length in self.lengths:
                    ours, other = (self._costs(factory, mode, dim, length) for factory in sides)
                    rows.append({
                        "mode": mode, "dim": dim, "length": length, "ours": ours, "baseline": other,
                        "ratios": {what: ours[what] / other[what] for what in ours},
                    })  # fmt: skip
        return {"rows": rows, "missing": []}

    def _factory(self, store: RunStore, side: Sequence[str], dim: int) -> Any:
        name, *overrides = side
        own = [f"backbone.dim={dim}", f"backbone.heads={self.sizes['heads']}"]
        return store.attention(name, [*own, *overrides])

    def _costs(self, factory: Any, mode: Mode, dim: int, length: int) -> dict[str, float]:
        setting = Setting(level="model", mode=mode, length=length, dim=dim, ffn=2 * dim, **self.sizes)
        counted = program_of(factory, dataclasses.replace(setting, device="meta"))
        # Not on the CPU, whose fused kernels of attention and affine maps torch's counter takes for nothing.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            counted()
        return {"operations": counter.get_total_flops() / 2, "memory": float(peak_of(program_of(factory, setting)))}

    def draw(self, numbers: Numbers) -> Any:
        figure, axes = panels(2, 2, height=2.8, sharex=True)
        for line, what in zip(axes, ("operations", "memory"), strict=True):
            for panel, mode in zip(line, self.modes, strict=True):
                for place, dim in enumerate(self.dims):
                    points = {
                        r["length"]: 100 * r["ratios"][what]
                        for r in numbers["rows"] if (r["mode"], r["dim"]) == (mode, dim)
                    }  # fmt: skip
                    panel.plot(list(points), list(points.values()), label=f"width {dim}", **line_style(place))
                lengths_axis(panel, self.lengths)
                panel.set(ylabel=f"{what}, % of baseline", title=mode)
        axes[0, 0].legend(fontsize=8)
        figure.suptitle(f"{self.title} ({self.ours[0]} over {self.baseline[0]})", fontsize=10)
        return figure
