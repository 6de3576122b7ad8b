"""Prints a plan in the terminal: runs left, their time and disk space, and missing data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from subquad.config.task_metadata import about_task
from subquad.planning.cost import Device
from subquad.planning.table_plan import Share
from subquad.utils.byte_sizes import readable_bytes
from subquad.utils.display import counted

if TYPE_CHECKING:  # importing it takes torch
    from subquad.planning.gpu_memory import Fit

UNKNOWN = "not measured"


def show_plan(title: str, tasks: Mapping[str, Share], total: Share) -> None:
    """Prints a row for each task, and totals; sums with unknown terms begin with "at least"."""
    console = Console(highlight=False)
    console.print(title, style="bold", soft_wrap=True, markup=False)
    grid = Grid(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # fits into 80 columns
    devices = {"CPU": "cpu", "GPU": "cuda"} if total.memory else {}
    for name in ("", "done", "left", "time left", *devices, "disk", "data"):
        words = {"no_wrap": True} if name not in ("", "time left") else {"min_width": 12, "overflow": "fold"}
        grid.add_column(name, justify="left" if name in ("", "data") else "right", **words)
    for task, share in sorted(tasks.items()):
        data = "missing" if share.needs else "here" if share.left else ""
        numbers = (f"{number:,}" for number in (share.finished, share.left))
        peaks = (readable_bytes(share.memory[device]) if device in share.memory else "" for device in devices.values())
        time = time_left(share) + "*" * bool(share.kept) + "*" * bool(share.others)
        grid.add_row(task, *numbers, time, *peaks, checkpoints(share), data)
    console.print(grid)
    if total.kept > total.others:
        console.print("* estimated from a kept run (docs/results), scaled by its steps", soft_wrap=True)
    if total.others:
        console.print(
            "** the median of kept runs of other attentions, with your steps; yours may take longer", soft_wrap=True
        )
    console.print(f"{counted(total.runs, 'run')}, {total.finished:,} finished, {total.left:,} left.")
    if not total.left:
        return
    console.print(f"Time: {time_left(total)}{_sources(total)}.", soft_wrap=True)
    if devices:
        console.print(
            "Memory: columns CPU and GPU are traced peaks of a training step, of the largest model with a whole batch.",
            soft_wrap=True,
        )
    console.print(f"Disk: {checkpoints(total)} of checkpoints; caches of data are not counted.", soft_wrap=True)
    for task, share in sorted(tasks.items()):
        for sentence in sorted(share.needs):
            size = about_task(task).get("download")
            download = f" (download: {size})" if size else ""
            missing = f"Missing for {counted(share.left, 'run')} of {task}{download}: {sentence}"
            console.print(missing, soft_wrap=True, markup=False)


def show_memory(fits: Sequence["Fit"], memory: int, kept_free: float) -> None:
    """Prints what makes the training steps of settings fit a GPU of `memory` bytes."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    whole = [fit for fit in fits if fit.way == (False, 1)]
    console.print(
        f"Memory of a training step on a GPU of {readable_bytes(memory)}, by a trace, not measured on a GPU; "
        f"{kept_free:.0%} is kept free."
    )
    if whole:
        largest = readable_bytes(max(fit.whole for fit in whole))
        console.print(f"{len(whole)} of {len(fits)} models fit with the whole batch, the largest with {largest}.")
    for fit in sorted((fit for fit in fits if fit not in whole), key=lambda fit: -fit.whole):
        overrides = (text for text in fit.setting.overrides if not text.startswith("ckpt_path="))
        console.print(f"  {' '.join(overrides)}: {fit.answer}")


def time_left(share: Share) -> str:
    """GPU-hours and CPU-hours; a CPU-hour is an hour of all threads of a CPU."""
    if not share.left:
        return ""
    if not share.timed:
        return UNKNOWN
    parts = [_hours(seconds, device) for device, seconds in share.seconds.items() if seconds]
    return "at least " * (share.timed < share.left) + (" + ".join(parts) or "0")


def checkpoints(share: Share) -> str:
    """Disk space of the checkpoints of the runs left."""
    if not share.left:
        return ""
    if not share.sized:
        return "unknown"
    return "at least " * (share.sized < share.left) + readable_bytes(share.checkpoint_bytes)


def _hours(seconds: float, device: Device) -> str:
    hours, kind = seconds / 3600, "GPU" if device.gpu else "CPU"
    return f"{hours:,.2g} {kind}-hours" if hours < 10 else f"{hours:,.0f} {kind}-hours"


def _sources(share: Share) -> str:
    """Devices and measurements that the time is based on."""
    sources = []
    if share.whole > share.kept:
        sources.append(f"{counted(share.whole - share.kept, 'run')} by finished runs of their kind")
    if share.kept > share.others:
        sources.append(f"{counted(share.kept - share.others, 'run')} estimated from kept runs of their kind")
    if share.others:
        sources.append(f"{counted(share.others, 'run')} by other attentions (measure=true times steps of each here)")
    if share.timed > share.whole:
        sources.append(f"{share.timed - share.whole} by measured training steps, without their evaluations")
    if share.left > share.timed:
        unknown = f"{share.left - share.timed} not measured " if share.timed else ""
        sources.append(f"{unknown}(measure=true times steps of each here)")
    names = ", ".join(dict.fromkeys(device.name for device in share.seconds))
    devices = f" on {names}:" if names else ""
    return f"{devices} {'; '.join(sources)}"
