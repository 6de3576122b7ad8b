"""Cost of refreshing the fitted state of an attention: seconds, memory, and the equivalent number of forward passes.

python scripts/bench_refresh.py                                # EcoFormer in the first stage of PVTv2-B0
python scripts/bench_refresh.py attention=ecoformer attention.fit=strong length=784 dim=64 heads=2
"""

import sys

import torch
from rich.console import Console
from torch import nn

from subquad.attention.base import Refreshable
from subquad.cli.command import script_settings
from subquad.config.compose import load_attention
from subquad.measure.memory import LiveTensors
from subquad.measure.timing import interleave
from subquad.specs import Masks, Pattern, Site
from subquad.utils.cores import usable_cores
from subquad.utils.errors import UserError

SIZES = {"length": 3136, "dim": 32, "heads": 1, "batch": 8, "rounds": 3, "threads": None}


def main() -> None:
    """Measures one layer and prints the result."""
    overrides = [arg for arg in sys.argv[1:] if arg.startswith("attention")]
    config = script_settings(SIZES, [arg for arg in sys.argv[1:] if arg not in overrides])
    name = next((arg.partition("=")[2] for arg in overrides if arg.startswith("attention=")), "ecoformer")
    torch.set_num_threads(config.threads or usable_cores())
    torch.manual_seed(0)
    site = Site(
        pattern=Pattern.SELF, dim=config.dim, heads=config.heads, query_len=config.length, context_len=config.length
    )
    attention = load_attention(name, [arg for arg in overrides if not arg.startswith("attention=")])(site=site)
    if not isinstance(attention, nn.Module) or not isinstance(attention, Refreshable):
        raise UserError(f"{name} has no state to refresh; choose another attention.")
    x = torch.randn(config.batch, config.length, config.dim)

    def forward() -> None:
        with torch.inference_mode():
            attention(x, x, Masks())

    with LiveTensors() as memory:
        attention.refresh(x, x, Masks())
    timings = interleave({"refresh": lambda: attention.refresh(x, x, Masks()), "forward": forward}, config.rounds, 1)
    Console(width=110).print(
        f"{name}, {config.batch} x {config.length} tokens of width {config.dim}, {config.heads} heads, "
        f"{torch.get_num_threads()} threads: {timings['refresh'].median:.2f} s, "
        f"{timings['refresh'].ratio(timings['forward']):.0f} forward passes, {memory.peak / 2**20:.0f} MiB at most"
    )
