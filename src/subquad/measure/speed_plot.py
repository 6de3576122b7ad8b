"""Plots of measured costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def curves(costs: Mapping[str, Mapping[int, float]], unit: str, ceiling: str, title: str = "") -> Any:
    """A matplotlib figure of costs against length on logarithmic axes; the line of `ceiling` is dashed."""
    import matplotlib  # slow to import

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    lengths = sorted({length for line in costs.values() for length in line})
    for name, line in costs.items():
        style = {"color": "black", "linestyle": "--"} if name == ceiling else {"marker": "o"}
        axes.plot(sorted(line), [line[n] for n in sorted(line)], label=name.replace("_", " "), **style)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=unit, title=title)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def draw_speed(milliseconds: Mapping[str, Mapping[int, float]], ceiling: str, title: str, path: Path) -> None:
    """Writes a plot of times in milliseconds."""
    from matplotlib import pyplot as plt

    figure = curves(milliseconds, "milliseconds", ceiling, title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
