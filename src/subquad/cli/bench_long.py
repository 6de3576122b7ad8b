"""Time and memory per token of attention layers on long inputs; softmax is left out because it would take hours.

python scripts/bench_long.py                                            # up to 1,048,576 tokens
python scripts/bench_long.py attention=[dba] lengths=[65536] dims=[64]
"""

import itertools
import sys

import torch
from rich.console import Console
from rich.table import Table

from subquad.cli.command import bench_config
from subquad.config.compose import load_attention
from subquad.measure.benchmark import Setting, peak_of, program_of
from subquad.measure.timing import interleave
from subquad.utils.cores import usable_cores
from subquad.utils.devices import chosen_device
from subquad.utils.errors import UserError

DEFAULTS = ["attention=[dba,luna,linear]", "lengths=[65536,131072,262144,524288,1048576]", "levels=[layer]", "rounds=3"]
UNREAD = ("backbone", "compiled", "dtypes", "float32_precision", "output")
"""Settings of bench.py that this command has not."""


def main() -> None:
    """Prints a table for each level, mode, width and batch size, with a row for each attention and length."""
    if given := [word for word in sys.argv[1:] if word.partition("=")[0] in UNREAD]:
        raise UserError(f"bench_long measures in float32 without torch.compile; {', '.join(given)} is for bench.py.")
    config = bench_config([*DEFAULTS, *sys.argv[1:]])
    torch.set_num_threads(config.threads or usable_cores())
    device = chosen_device(config.device)
    console = Console(width=110)
    for level, mode, dim, batch in itertools.product(config.levels, config.modes, config.dims, config.batches):
        table = Table(
            title=f"{level}, {mode}: d={dim}, {config.heads} heads, batch {batch}, float32, "
            f"{torch.get_num_threads()} threads, {device}",
            title_justify="left",
        )
        for heading in ("", "tokens", "seconds", "µs a token", "memory MiB", "bytes a token"):
            table.add_column(heading, justify="right" if heading else "left")
        for name, length in itertools.product(config.attention, config.lengths):
            setting = Setting(
                level=level, mode=mode, length=length, dim=dim, heads=config.heads, ffn=config.ffn,
                layers=config.layers, batch=batch, device=device,
            )  # fmt: skip
            run = program_of(load_attention(name), setting)
            seconds = interleave({name: run}, config.rounds)[name].median
            peak, tokens = peak_of(run, device), batch * length
            table.add_row(
                name, f"{length:,}", f"{seconds:.3f}", f"{1e6 * seconds / tokens:.3f}", f"{peak / 2**20:,.0f}",
                f"{peak / tokens:,.0f}",
            )  # fmt: skip
        console.print(table)
