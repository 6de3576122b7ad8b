"""Draws the matrix of an attention's weights between tokens, beside the one of softmax attention.

python scripts/show_attention.py attention=dba
python scripts/show_attention.py attention=linear,ecoformer,nystromformer length=36 dim=64 heads=4
python scripts/show_attention.py backbone=tlb

If outputs are linear in the values, the figure shows the exact weights of the heads; otherwise it shows how much each
output changes with each input. The JSON file beside the figure has both, with their spectra.
"""

import sys
from pathlib import Path

from rich.console import Console

from subquad.cli.command import listed, script_settings
from subquad.cli.table_arguments import outputs_of
from subquad.config.choices import options
from subquad.config.compose import load_factory
from subquad.utils.errors import UserError

DEFAULTS = {"attention": "dba", "backbone": None, "length": 32, "dim": 32, "heads": 4, "seed": 0, "output": None}


def main() -> None:
    """Writes a figure and its numbers for each attention."""
    import torch

    from subquad.report.figures.attention_maps import draw_mixing, mixing
    from subquad.utils.save_figure import save

    config = script_settings(DEFAULTS, sys.argv[1:])
    if min(config.length, config.dim, config.heads) < 1 or config.length > config.dim:
        raise UserError(f"The width must be at least the number of tokens; set dim={max(config.length, 1)} or more.")
    torch.set_num_threads(1)
    folder = Path(config.output or outputs_of([]) / "figures/attention")
    names = options("attention") if config.attention == "all" else listed(config.attention)
    group = "attention" if config.backbone is None else "backbone"
    for name in names if config.backbone is None else listed(config.backbone):
        numbers = mixing(name, load_factory(f"{group}={name}"), config.length, config.dim, config.heads, config.seed)
        for path in save(draw_mixing(numbers), numbers, folder, name):
            Console(highlight=False).print(str(path), soft_wrap=True, markup=False)
