"""The table at the end of a sweep: a line for each configuration, its score over the seeds, its size and its time."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from subquad.results.repeats import repeats
from subquad.results.scan import read_run
from subquad.utils.display import duration
from subquad.utils.errors import UserError


def show_outcome(config: Any, folders: Iterable[Path]) -> None:
    """Prints the finished runs of these folders, grouped over seeds, if there are several.

    config: that of Hydra. Nothing is printed for the runs of reproduce.py, which shows its tables, and of a search.
    """
    if is_search(config) or str(OmegaConf.select(config, "hydra.sweeper._target_")).endswith("JobList"):
        return
    runs = []
    for folder in dict.fromkeys(folders):
        with suppress(UserError):  # which the run itself has reported
            runs.append(read_run(folder))
    finished = [run for run in runs if run is not None]
    if len(finished) < 2:
        return
    lines = repeats(finished)
    several = len({line.runs[0].record.task for line in lines}) > 1
    grid = Grid(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left",
        title=f"{len(finished)} runs, mean ± standard deviation over seeds",
    )  # fmt: skip
    grid.add_column("attention on task" if several else "attention", overflow="fold")
    for name in ("score", "seeds", "parameters", "time of a run"):
        grid.add_column(name, justify="right", no_wrap=name != "time of a run")
    for line in lines:
        record = line.runs[0].record
        place = f"{record.attention} on {record.task}" if several else record.attention
        score = f"{line.metric.removeprefix('test/')} {line.score}"
        cells = (score, str(len(line.runs)), f"{record.parameters:,}", duration(line.seconds))
        grid.add_row(escape(f"{place} {line.settings}".strip()), *cells)
    Console(highlight=False).print(grid)


def is_search(config: Any) -> bool:
    """Whether the runs of a sweep are the trials of a search, which has a summary of its own."""
    return str(OmegaConf.select(config, "hydra.sweeper._target_")).endswith("OptunaSweeper")
