"""Draws a figure of a paper from this package's own runs and measurements.

python scripts/figure.py figure=primal_dual/1
python scripts/figure.py figure=dba/4 scale=laptop            # lists the missing runs
python scripts/figure.py figure=dba/4 scale=laptop run=true   # trains them first, then draws
python scripts/figure.py figure=linformer/2 lengths=[512,1024] rounds=1
python scripts/figure.py figure=primal_dual/1 width=6.75      # inches, as in a paper: 3.3 is a column of many

Settings are those of configs/figure/<paper>/<number>.yaml. Overrides of train.py that do not change which runs the
figure shows (scale=, data=, data.folder=, trainer=) go to every run, sweep.workers= and hydra/... to their sweep. A
picture (PNG, SVG) and its numbers (JSON) are written to outputs/figures/<paper>/<number>/; all three name missing runs.
Without any of its runs nothing is written.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from subquad.cli.command import script_settings
from subquad.cli.table_arguments import outputs_of
from subquad.config.choices import file_of, options
from subquad.utils.display import command_line
from subquad.utils.errors import UserError
from subquad.utils.setting_types import Positive, SettingType, check

OWN = {"figure": "???", "run": False, "output": None, "width": None}
OF_SWEEP = ("hydra", "sweep.")
PASSED = ("scale=", "data=", "data.", "limits.", "protocol=", "trainer", "logger", "paths.", "recipe.", *OF_SWEEP)


def main() -> int:
    """Draws the figure and prints where it is; 1 if a run failed."""
    passed = [override for override in sys.argv[1:] if override.startswith(PASSED)]
    rest = [override for override in sys.argv[1:] if override not in passed]
    name, file = _chosen(rest)
    config = script_settings(OmegaConf.merge(OWN, OmegaConf.load(file)), rest)
    if config.width is not None:
        check("width", config.width, SettingType(Positive))

    import torch
    from hydra.utils import instantiate

    from subquad.config.settings import check_settings
    from subquad.measure import machine
    from subquad.report.figures.style import fit
    from subquad.results.run_store import RunStore
    from subquad.sweep.runner import train_all
    from subquad.utils.cores import usable_cores
    from subquad.utils.save_figure import save

    torch.set_num_threads(usable_cores())
    node: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, [str(key) for key in config if key not in OWN]))
    check_settings("figure", node)
    figure = instantiate(node, _convert_="all")
    choices = [override for override in passed if not override.startswith(OF_SWEEP)]
    store, console = RunStore(choices), Console(highlight=False)
    jobs = {
        job.folder: job
        for job in (store.spec(overrides, seed) for overrides, seed in figure.runs())
        if not job.finished
    }
    store.runs.compositions.save()
    of_sweep = [override for override in passed if override.startswith(OF_SWEEP)]
    failed = train_all(list(jobs.values()), of_sweep) if jobs and config.run else False
    numbers = figure.measure(store)
    facts = {
        "figure": name, "title": figure.title, "source": figure.source, "overrides": choices, "settings": node,
        **machine.facts(),
    }  # fmt: skip
    folder = Path(config.output or outputs_of(choices) / "figures" / name)
    picture = figure.draw(numbers)
    if config.width:
        fit(picture, float(config.width))
    if any(map(_has_data, picture.axes)):
        for path in save(
            picture, facts | {"numbers": numbers}, folder, Path(name).name, dpi=600 if config.width else 130
        ):
            console.print(str(path), soft_wrap=True, markup=False)
    else:
        console.print("Nothing is drawn: no run of this figure has finished here.")
    for sentence in numbers["missing"]:
        console.print(sentence, soft_wrap=True, markup=False)
    if jobs and not config.run:
        command = command_line("python scripts/figure.py", [*sys.argv[1:], "run=true"])
        console.print(f"Train the missing runs: {command}", soft_wrap=True, markup=False)
    return int(failed)


def _has_data(axes: Any) -> bool:
    """Whether something is drawn; an image of a grid without a number is nothing."""
    import numpy as np

    images = [np.ma.filled(image.get_array(), np.nan) for image in axes.images]
    return any(np.isfinite(image).any() for image in images) if images else bool(axes.has_data())


def _chosen(overrides: list[str]) -> tuple[str, Path]:
    """The name of the figure and its file; raises UserError at an unknown one."""
    [*_, name] = ["", *(override.partition("=")[2] for override in overrides if override.startswith("figure="))]
    file = file_of("figure", name)
    if file is None:
        asked = f'There is no figure "{name}"' if name else "Which figure? Say figure=<paper>/<number>"
        raise UserError(f"{asked}; the figures are {', '.join(options('figure'))}.")
    return name, file
