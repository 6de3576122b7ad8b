"""How sequences are compressed: DBA's matrices, which follow the input, beside Linformer's, which do not."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.dba import DBA
from subquad.attention.linformer import Linformer
from subquad.report.figures.figure_base import Figure, Numbers
from subquad.report.figures.style import DIVERGING, SEQUENTIAL, panels, say_missing, shade
from subquad.results.run_store import Overrides, RunStore


class Compression(Figure):
    """W_c of DBA and E of Linformer in the first layer, `[d_p, n]` and `[k, n]`, and the input that they compress.

    Args:
        overrides: shared by both runs, on real-valued series.
        dba: overrides of DBA's run.
        linformer: overrides of Linformer's run.
        samples: rows of the test split.
    """

    def __init__(
        self, title: str, source: str, overrides: Sequence[str], dba: Sequence[str], linformer: Sequence[str],
        samples: Sequence[int] = (0, 10, 20), seed: int = 0,
    ) -> None:  # fmt: skip
        self.title, self.source, self.overrides, self.seed, self.samples = title, source, overrides, seed, samples
        self.sides = {"DBA": [*overrides, *dba], "Linformer": [*overrides, *linformer]}

    def runs(self) -> list[tuple[Overrides, int]]:
        return [(overrides, self.seed) for overrides in self.sides.values()]

    @torch.no_grad()
    def measure(self, store: RunStore) -> Numbers:
        networks = {side: store.network(overrides, self.seed) for side, overrides in self.sides.items()}
        trained = {side: network for side, network in networks.items() if network is not None}
        found: Numbers = {"samples": [], "sides": {}, "missing": self.unfinished(store)}
        if not trained:
            return found
        dataset = store.data(self.sides["DBA"], self.seed).batched("test")
        samples = [place for place in self.samples if place < len(dataset)]
        found["missing"] += [
            f"test row {place}: there are {len(dataset)}" for place in self.samples if place >= len(dataset)
        ]
        batches = [dataset.__getitems__([place]) for place in samples]
        matrices = {side: [compressor(network, b.network_inputs) for b in batches] for side, network in trained.items()}
        for i, batch in enumerate(batches):
            series = batch.inputs[0] if batch.valid is None else batch.inputs[0][batch.valid[0]]
            found["samples"].append({
                "row": samples[i], "label": int(batch.target[0]), "input": series.tolist(),
                "matrices": {side: each[i].tolist() for side, each in matrices.items()},
                "compressed": {side: (each[i] @ series).tolist() for side, each in matrices.items()},
            })  # fmt: skip
        found["sides"] = {
            side: {"change_between_samples": change(each), "roughness": roughness(each)}
            for side, each in matrices.items()
        }
        return found

    def draw(self, numbers: Numbers) -> Any:
        sides = list(numbers["sides"])
        if not sides:
            figure, _ = panels(1, 1)
            say_missing(figure, numbers["missing"])
            return figure
        rows = numbers["samples"]
        figure, axes = panels(len(rows), 1 + 2 * len(sides), width=2.9, height=2.1)
        for line, sample in zip(axes, rows, strict=True):
            series = np.array(sample["input"])
            for channel, values in enumerate(series.T):
                line[0].plot(values, linewidth=0.8, color=shade(channel / max(1, series.shape[1] - 1)))
            line[0].set(ylabel=f"test row {sample['row']}\nstandardised value", xlabel="step")
            for place, side in enumerate(sides):
                matrix = np.array(sample["matrices"][side])
                top = float(np.abs(matrix).max())
                shown = {"cmap": SEQUENTIAL, "vmin": 0} if matrix.min() >= 0 else {"cmap": DIVERGING, "vmin": -top}
                image = line[1 + place].imshow(matrix, aspect="auto", vmax=top, interpolation="nearest", **shown)
                figure.colorbar(image, ax=line[1 + place])
                line[1 + place].set(xlabel="step", ylabel="slot")
                panel = line[1 + len(sides) + place]
                compressed = np.array(sample["compressed"][side])
                for channel, values in enumerate(compressed.T):
                    panel.plot(values, linewidth=0.8, color=shade(channel / max(1, compressed.shape[1] - 1)))
                panel.set(xlabel="slot", ylabel="value")
        names = ["input", *(f"{s}: matrix" for s in sides), *(f"{s}: compressed input" for s in sides)]
        for panel, name in zip(axes[0], names, strict=True):
            panel.set_title(name, fontsize=9)
        figure.suptitle(self.title, fontsize=10)
        say_missing(figure, numbers["missing"])
        return figure


def compressor(network: nn.Module, inputs: tuple[Any, ...]) -> Float[Tensor, "k n"]:
    """The matrix of the network's first DBA or Linformer layer that makes k rows of the n real tokens of one sequence.

    DBA: W_c = softmax(Z Kᵀ), the paper's formula on the layer's own input. Linformer: E of the first head, cut to n.
    """
    layer = next(m for m in network.modules() if isinstance(m, DBA | Linformer))
    caught: list[tuple[Any, ...]] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: caught.append(arguments))
    network(*inputs)
    hook.remove()
    _, context, masks, carry = caught[0]
    real = slice(None) if masks.context is None else masks.context[0]
    if isinstance(layer, Linformer):
        return layer.key_map[0][:, : context.shape[1]][:, real].detach()
    return layer.compression(context, masks, carry, keys=True)[0][:, real].detach()


def change(matrices: Sequence[Float[Tensor, "k n"]]) -> float:
    """Mean over pairs of samples of ‖A - B‖_F / mean ‖·‖_F, on the steps that both have; 0 for a fixed matrix."""
    ratios = []
    for a, b in itertools.combinations(matrices, 2):
        n = min(a.shape[1], b.shape[1])
        a, b = a[:, :n], b[:, :n]
        ratios.append(float((a - b).norm() / ((a.norm() + b.norm()) / 2)))
    return sum(ratios) / len(ratios) if ratios else 0.0


def roughness(matrices: Sequence[Float[Tensor, "k n"]]) -> float:
    """Mean over samples of ‖steps of A along the tokens‖_F / ‖A - its row means‖_F: √2 for noise, less where smooth."""
    values = [float(m.diff(dim=1).norm() / (m - m.mean(1, keepdim=True)).norm()) for m in matrices]
    return sum(values) / len(values)
