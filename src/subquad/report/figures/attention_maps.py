"""Which tokens an attention reads, beside softmax attention, with the spectra of both."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Attention
from subquad.measure.analysis.attention_matrix import (
    build,
    cumulative_spectrum,
    effective_rank,
    influence,
    softmax_like,
    value_weights,
)
from subquad.report.figures.figure_base import Numbers
from subquad.report.figures.style import SEQUENTIAL, line_style, panels


def mixing(name: str, factory: Any, length: int = 32, dim: int = 32, heads: int = 4, seed: int = 0) -> Numbers:
    """Influence and exact weights of a mechanism with its initial weights and of softmax attention, on N(0, 1) tokens.

    Weights are None where outputs are not linear in the values of single heads, and for encoders.
    """
    module, x = build(factory, length, dim, heads, seed)
    sides: dict[str, Any] = {name: module}
    if isinstance(module, Attention) and name != "softmax":
        sides["softmax"] = softmax_like(module, module.site)
    return {
        "length": length, "dim": dim, "heads": heads, "seed": seed,
        "sides": {side: _side(made, x) for side, made in sides.items()},
    }  # fmt: skip


def _side(module: Any, x: Float[Tensor, "1 n d"]) -> Numbers:
    weights = None
    if isinstance(module, Attention):
        weights = value_weights(module, x)
    return {
        "influence": _matrix(influence(module, x)),
        "weights": None if weights is None else _matrix(weights),
    }


def _matrix(values: Float[Tensor, "*b m n"]) -> Numbers:
    """Values, spectrum and effective rank; of heads, one spectrum each."""
    return {
        "values": values.tolist(),
        "cumulative_spectrum": cumulative_spectrum(values).tolist(),
        "effective_rank": effective_rank(values).tolist(),
    }


def draw_mixing(numbers: Numbers) -> Any:
    """A matrix for each side (the mean over heads, if there are exact weights), and the spectra."""
    sides: Mapping[str, Any] = numbers["sides"]
    exact = all(side["weights"] for side in sides.values())
    kind = "weights" if exact else "influence"
    figure, [axes] = panels(1, len(sides) + 1)
    for place, (name, side) in enumerate(sides.items()):
        values = np.array(side[kind]["values"])
        shown = values.mean(0) if exact else values
        image = axes[place].imshow(shown, cmap=SEQUENTIAL, interpolation="nearest")
        figure.colorbar(image, ax=axes[place], shrink=0.8, label="weight" if exact else "‖∂y_i / ∂x_j‖")
        axes[place].set(title=name.replace("_", " "), xlabel="context token j", ylabel="output token i")
        spectrum = np.array(side[kind]["cumulative_spectrum"])
        spectrum = spectrum.mean(0) if exact else spectrum
        rank = np.mean(side[kind]["effective_rank"])
        axes[-1].plot(
            range(1, len(spectrum) + 1), spectrum, **line_style(place), markersize=3,
            label=f"{name.replace('_', ' ')}, effective rank {rank:.1f}",
        )  # fmt: skip
    axes[-1].set(
        xlabel="singular values, largest first",
        ylabel="share of their sum",
        ylim=(0, 1.03),
        title="cumulative spectrum",
    )
    axes[-1].legend(fontsize=8)
    axes[-1].grid(alpha=0.3)
    what = "exact weights, mean over heads" if exact else "influence of inputs on outputs"
    figure.suptitle(f"{what}; {numbers['length']} random tokens, initial weights", fontsize=10)
    return figure
