"""Pictures of measured speed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from subquad.measure.bench import NO_ATTENTION


def draw_speed(milliseconds: Mapping[str, Mapping[int, float]], title: str, path: Path) -> None:
    """Time against length on logarithmic axes, one line for each attention; the ceiling without attention is dashed."""
    import matplotlib  # heavy, and needed once a benchmark

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    lengths: Sequence[int] = sorted({length for line in milliseconds.values() for length in line})
    for name, line in milliseconds.items():
        ceiling = name == NO_ATTENTION
        style = {"color": "black", "linestyle": "--"} if ceiling else {"marker": "o"}
        axes.plot(sorted(line), [line[n] for n in sorted(line)], label=name.replace("_", " "), **style)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="milliseconds", title=title)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)
