"""Shares of attention and feed-forward nets in the operations and the energy of a model."""

from collections.abc import Sequence
from typing import Any

import torch

from subquad.backbones.vision import Pyramid, PyramidName
from subquad.measure.energy import energy
from subquad.measure.operations import Convention, by_group, count
from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import COLOURS, panels
from subquad.results.run_store import RunStore
from subquad.specs import ImageSpec


class Shares(Figure):
    """One bar for each model of timm, with `attention` in all of its stages. side: pixels of the edge of an image.

    Operations are multiplications and additions; energy is 3.7 pJ and 0.9 pJ for each. They are counted, not executed.
    convention: "published" counts as EcoFormer's tables do, "everything" counts every operator.
    """

    def __init__(
        self, title: str, source: str, models: Sequence[PyramidName], attention: str = "softmax", side: int = 224,
        convention: Convention = "published",
    ) -> None:  # fmt: skip
        self.title, self.source, self.models, self.attention = title, source, models, attention
        self.side, self.convention = side, convention

    def measure(self, store: RunStore) -> Numbers:
        factory = store.attention(self.attention)
        spec = ImageSpec(side=self.side, channels=3, classes=1000)
        found = {}
        for model in self.models:
            with torch.device("meta"):
                network = Pyramid(spec=spec, attention=factory, exact=factory, model=model).eval()
                image = torch.zeros(1, 3, self.side, self.side)
            groups = by_group(network, count(network, (image,), self.convention))
            costs = {g: {"operations": float(t.mul + t.add), "energy_pj": energy(t)} for g, t in groups.items()}
            sums = {what: sum(cost[what] for cost in costs.values()) for what in ("operations", "energy_pj")}
            shares = {g: {what: cost[what] / sums[what] for what in sums} for g, cost in costs.items()}
            found[model] = {"costs": costs, "shares": shares}
        return {"models": found, "missing": []}

    def draw(self, numbers: Numbers) -> Any:
        figure, [axes] = panels(1, 2, sharey=True)
        for panel, (what, label) in zip(
            axes, (("operations", "multiplications and additions"), ("energy_pj", "energy of arithmetic (model)")),
            strict=True,
        ):  # fmt: skip
            left = [0.0] * len(self.models)
            for place, group in enumerate(("attention", "feed-forward", "norms", "rest")):
                widths = [100 * numbers["models"][m]["shares"].get(group, {}).get(what, 0.0) for m in self.models]
                bars = panel.barh(list(self.models), widths, left=left, color=COLOURS[place], label=group, alpha=0.8)
                texts = [f"{width:.0f} %" if width > 8 else "" for width in widths]
                panel.bar_label(bars, texts, label_type="center", fontsize=8)
                left = [a + b for a, b in zip(left, widths, strict=True)]
            panel.set(xlabel=f"share of {label}, %", xlim=(0, 100))
        axes[0].invert_yaxis()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
        figure.suptitle(f"{self.title} ({self.attention}, {self.side} x {self.side} pixels)", fontsize=10)
        return figure
