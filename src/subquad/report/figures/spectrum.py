"""The spectrum of attention matrices: the share of their largest singular values in each layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.measure.analysis.attention_matrix import cumulative_spectrum
from subquad.measure.analysis.head_weights import HeadWeights
from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import SEQUENTIAL, panels, say_missing, shade
from subquad.results.run_store import Overrides, RunStore


class Spectrum(Figure):
    """The spectra of a trained network beside those of the same network with its initial weights.

    Args:
        overrides: a run with softmax attention.
        rows: how many test sequences without padding are averaged over.
        share: index of the singular value, as a share of n, at which the heat map shows the sum (128 of 512).
    """

    def __init__(
        self, title: str, source: str, overrides: Sequence[str], rows: int = 32, share: float = 0.25, seed: int = 0
    ) -> None:
        self.title, self.source, self.overrides, self.rows = title, source, overrides, rows
        self.share, self.seed = share, seed

    def runs(self) -> list[tuple[Overrides, int]]:
        return [(self.overrides, self.seed)]

    def measure(self, store: RunStore) -> Numbers:
        found: Numbers = {"models": {}, "missing": self.unfinished(store)}
        if found["missing"]:
            return found
        dataset = store.data(self.overrides, self.seed).batched("test")
        for name, trained in (("trained", True), ("first weights", False)):
            network = store.network(self.overrides, self.seed, trained)
            assert network is not None, "a finished run has weights"
            spectra, used = spectra_of(network, dataset, self.rows)
            place = max(1, round(self.share * spectra.shape[-1])) - 1
            found["models"][name] = {
                "cumulative": spectra.tolist(), "sequences": used, "length": spectra.shape[-1],
                "place": place + 1, "at_place": spectra[..., place].tolist(),
            }  # fmt: skip
        return found

    def draw(self, numbers: Numbers) -> Any:
        models = numbers["models"]
        figure, [axes] = panels(1, max(1, len(models) + 1))
        for panel, (name, model) in zip(axes, models.items(), strict=False):
            layers = np.array(model["cumulative"]).mean(1)
            for layer, line in enumerate(layers):
                colour = shade(layer / max(1, len(layers) - 1) * 0.9)
                panel.plot(range(1, len(line) + 1), line, color=colour, label=f"layer {layer}")
            panel.axvline(model["place"], color="0.5", linestyle=":", linewidth=1)
            panel.set(
                title=f"{name}, mean over heads", xlabel=f"singular values, largest first (n = {model['length']})",
                ylabel="share of their sum", ylim=(0, 1.03),
            )  # fmt: skip
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7)
        if models:
            model = models["trained"]
            image = axes[-1].imshow(model["at_place"], cmap=SEQUENTIAL, aspect="auto")
            figure.colorbar(image, ax=axes[-1], label=f"share in the largest {model['place']}")
            axes[-1].set(title="trained", xlabel="head", ylabel="layer")
            axes[-1].set_xticks(range(len(model["at_place"][0])))
            axes[-1].set_yticks(range(len(model["at_place"])))
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure


@torch.no_grad()
def spectra_of(network: nn.Module, dataset: Any, rows: int) -> tuple[Float[Tensor, "l h n"], int]:
    """Cumulative normalised singular values by layer and head, averaged over sequences of one length; and how many.

    Sequences with padding are left out: their matrices are smaller.
    """
    total: Tensor | None = None
    used = 0
    for place in range(len(dataset)):
        inputs = dataset.__getitems__([place]).network_inputs
        if used == rows:
            break
        if len(inputs) > 1 and inputs[1] is not None and not bool(inputs[1].all()):
            continue
        with HeadWeights(network) as found:
            network(*inputs)
        spectra = torch.stack([cumulative_spectrum(weights[0].double()) for weights in found.layers])
        if total is not None and total.shape != spectra.shape:
            continue
        total, used = spectra if total is None else total + spectra, used + 1
    assert total is not None, "every test sequence is padded"
    return total / used, used
