"""Speed and memory of attentions: ratios to softmax and to a model without attention, measured in one run.

python scripts/bench.py                                        # make bench
python scripts/bench.py attention=[dba] lengths=[4096] modes=[inference] dtypes=[bfloat16]
python scripts/bench.py attention=[dba] backbone=[s4] levels=[model]
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from subquad.cli.command import bench_config
from subquad.cli.table_arguments import outputs_of
from subquad.config.compose import load_attention, load_factory
from subquad.measure import machine
from subquad.measure.benchmark import Measured, Setting, measure
from subquad.measure.growth import DOES_NOT_FIT, NO_ATTENTION
from subquad.measure.speed_plot import draw_speed
from subquad.records import now, write_json
from subquad.report.html.bench_page import EXPLICIT, SOFTMAX, how_compiled, write_bench_page
from subquad.results.benches import bench_times
from subquad.utils.cores import usable_cores
from subquad.utils.devices import chosen_device
from subquad.utils.display import command_line

REFERENCES = (EXPLICIT, SOFTMAX)
VARIED = {"dim": "dims", "batch": "batches", "dtype": "dtypes", "compiled": "compiled"}
"""Entries of a row and the lists of their values, of which plots show the first."""


def main() -> None:
    """Measures every setting, prints a table for each, and writes all numbers to a JSON file and an HTML page."""
    config = bench_config(sys.argv[1:])
    torch.set_num_threads(config.threads or usable_cores())
    device = chosen_device(config.device)
    names = list(dict.fromkeys([*REFERENCES, *config.attention]))
    factories = {name: load_attention(name) for name in names}
    factories |= {name: load_factory(f"backbone={name}") for name in config.backbone}
    console, results = Console(width=110), []
    for setting in _settings(config, device):
        measured = measure(factories, setting, config.rounds, partial=True)
        sides = [*factories, *([NO_ATTENTION] if setting.level == "model" else [])]
        console.print(_table(setting, sides, measured))
        results += [_row(setting, name, measured) for name in sides]
    folder = Path(config.output or outputs_of([]) / "bench") / now().replace(":", "")
    facts = machine.facts()
    settings = OmegaConf.to_container(config)
    write_json(folder / "results.json", {"settings": settings, **facts, "results": results})
    about = {
        "threads": torch.get_num_threads(), "rounds": config.rounds, "layers": config.layers,
        "cuda": device != "cpu", "command": command_line("python scripts/bench.py", sys.argv[1:]),
    }  # fmt: skip
    write_bench_page(folder / "index.html", results, facts | about)
    if len(config.lengths) > 1:
        for level, mode in itertools.product(config.levels, config.modes):
            drawn = {key: config[name][0] for key, name in VARIED.items()}
            shape = f"d={drawn['dim']}, {config.heads} heads, batch {drawn['batch']}{how_compiled(drawn['compiled'])}"
            title = f"{level}, {mode} ({shape}, {torch.get_num_threads()} threads, {device})"
            first = [row for row in results if all(row[key] == value for key, value in drawn.items())]
            draw_speed(bench_times(first, level, mode), NO_ATTENTION, title, folder / f"{level}-{mode}.png")
    console.print(str(folder / "index.html"), soft_wrap=True)


def _settings(config: DictConfig, device: str) -> Iterator[Setting]:
    choices = (config.levels, config.modes, config.dims, config.batches, config.dtypes, config.compiled, config.lengths)
    for level, mode, dim, batch, dtype, compiled, length in itertools.product(*choices):
        yield Setting(
            level=level, mode=mode, length=length, dim=dim, heads=config.heads, ffn=config.ffn, layers=config.layers,
            batch=batch, device=device, dtype=getattr(torch, dtype), compiled=compiled,
            precision=config.float32_precision,
        )  # fmt: skip


def _table(setting: Setting, sides: list[str], measured: dict[str, Measured]) -> Table:
    table = Table(
        title=f"{setting.level}, {setting.mode}: n={setting.length}, d={setting.dim}, {setting.heads} heads, "
        f"batch {setting.batch}, {_dtype(setting)}{how_compiled(setting.compiled)}, "
        f"{torch.get_num_threads()} threads, {setting.device}",
        title_justify="left",
    )
    ceiling = measured.get(NO_ATTENTION)
    for heading in ("", "ms", "x explicit", "x softmax", "memory MiB", "of explicit"):
        table.add_column(heading, justify="right" if heading else "left")
    if ceiling:
        table.add_column("of no-attention speed", justify="right")
    explicit, softmax = (measured.get(name) for name in REFERENCES)
    for name in sides:
        if name not in measured:
            table.add_row(name, DOES_NOT_FIT)
            continue
        m = measured[name]
        cells = [
            name,
            f"{1e3 * m.timing.median:.2f}",
            f"{explicit.timing.ratio(m.timing):.2f}" if explicit else "",
            f"{softmax.timing.ratio(m.timing):.2f}" if softmax else "",
            f"{m.peak / 2**20:.1f}",
            f"{m.peak / explicit.peak:.3f}" if explicit else "",
        ]
        table.add_row(*cells, *([f"{ceiling.timing.ratio(m.timing):.0%}"] if ceiling else []))
    return table


def _row(setting: Setting, name: str, measured: dict[str, Measured]) -> dict[str, Any]:
    m, softmax = measured.get(name), measured.get(SOFTMAX)
    row = {
        "level": setting.level,
        "mode": setting.mode,
        "length": setting.length,
        "dim": setting.dim,
        "batch": setting.batch,
        "dtype": _dtype(setting),
        "compiled": setting.compiled,
        "attention": name,
    }
    if m is None:
        return row | {"fits": False}
    return row | {
        "median_s": m.timing.median,
        "rounds_s": m.timing.seconds,
        "speedup_over_softmax": softmax.timing.ratio(m.timing) if softmax else None,
        "speedup_range": softmax.timing.spread(m.timing) if softmax else None,
        "peak_bytes": m.peak,
    }


def _dtype(setting: Setting) -> str:
    return str(setting.dtype).removeprefix("torch.")
