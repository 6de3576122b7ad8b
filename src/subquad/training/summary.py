"""Summary of a finished run: a short table in the terminal, and the learning curve as an image."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from subquad.records import HISTORY, RESULT, Record, read_history
from subquad.utils.display import duration, from_here, metric_text, sizes


def show(record: Record, run: Path, note: str = "") -> None:
    """Prints the result of a run, its baseline scores, its cost and the path of its record."""
    table = Table(
        title=f"{record.attention} on {record.task}, seed {record.seed}{note}", show_header=False, title_justify="left"
    )
    for name, value in record.metrics.items():
        if name.startswith("test/"):
            table.add_row(f"[bold]{name}", f"[bold]{metric_text(name, value)}")
            monitored = name.removeprefix("test/") == record.config["task"]["monitor"].removeprefix("val/")
            for baseline, score in record.baselines.items() if monitored else ():
                table.add_row(f"  {baseline}", metric_text(name, score))
    if record.config["data"].get("synthetic"):
        table.add_row("data", "[bold]synthetic (data=synthetic): not a result on the real data")
    if record.rows:
        table.add_row("rows", sizes(record.rows))
    table.add_row("protocol, scale", f"{record.protocol}, {record.scale}")
    table.add_row("checkpoint", _selection(record))
    table.add_row("parameters", f"{record.parameters:,}")
    table.add_row("steps, time", f"{record.steps:,} in {duration(record.wall_seconds)}")
    table.add_row("peak memory", f"{record.peak_memory_mib:,.0f} MiB ({record.peak_memory_of})")
    console = Console(highlight=False)
    console.print(table)
    for name in (RESULT, "curve.png"):
        if (run / name).exists():
            console.print(str(from_here(run / name)), soft_wrap=True, markup=False)


def _selection(record: Record) -> str:
    """Which checkpoint was tested, and on which rows it was chosen."""
    best = record.config.get("callbacks", {}).get("best", {})
    if (monitor := best.get("monitor", record.config["task"]["monitor"])) is None:
        return "the last"
    splits = {"paper": "the test split", "clean": "held-out training rows"}
    return f"best {monitor} on {splits.get(record.config['data'].get('protocol'), 'the validation split')}"


def draw_curve(record: Record, run: Path, monitor: str) -> None:
    """Writes `curve.png`: losses and the validation metric by step, with the baseline scores as dashed lines."""
    import matplotlib  # slow to import

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    history = read_history(run / HISTORY)
    margins = {
        "left": 0.08,
        "right": 0.985,
        "bottom": 0.15,
        "top": 0.88,
        "wspace": 0.2,
    }  # a layout engine would draw twice
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), gridspec_kw=margins)
    for name, axes in (("train/loss", left), ("val/loss", left), (monitor, right)):
        points = [(step, row[name]) for step, row in history.items() if name in row]
        if points:
            axes.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else "", label=name)
    metric = monitor.split("/")[1]
    if (tested := f"test/{metric}") in record.metrics:
        right.axhline(record.metrics[tested], color="black", linewidth=1, label=tested)
    for shade, (name, score) in zip(("0.4", "0.6", "0.7"), record.baselines.items(), strict=False):
        right.axhline(score, color=shade, linestyle="--", linewidth=1, label=name)
    for axes, label in ((left, "loss"), (right, metric)):
        axes.set(xlabel="optimiser steps", ylabel=label)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.suptitle(
        f"{record.attention} on {record.task} ({record.recipe}, {record.scale}, seed {record.seed})", fontsize=10
    )
    figure.savefig(run / "curve.png", dpi=120)
    plt.close(figure)
