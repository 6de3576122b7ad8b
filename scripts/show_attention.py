"""Who reads whom in an attention: a picture of the matrix between tokens that it implies, beside softmax attention's.

python scripts/show_attention.py attention=dba
python scripts/show_attention.py attention=linear,ecoformer,nystromformer length=36 dim=64 heads=4

Where outputs are linear in the values the exact weights of the heads are drawn, otherwise how much each output changes
with each input. Both, with their spectra, are in the JSON file beside the picture.
"""

import sys
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console

from subquad.errors import UserError
from subquad.run.doors import answer_help, compose_run, load_attention, options, prepare_process, script_settings

DEFAULTS = {"attention": "dba", "length": 32, "dim": 32, "heads": 4, "seed": 0, "output": None}

answer_help(__doc__)
prepare_process(check_choices=False)


def main() -> None:
    """Writes a picture and its numbers for each attention."""
    import torch

    from subquad.figures.mixing import draw_mixing, mixing
    from subquad.run.pictures import save

    config = script_settings(OmegaConf.create(DEFAULTS), sys.argv[1:])
    if min(config.length, config.dim, config.heads) < 1 or config.length > config.dim:
        raise UserError(f"The width must be at least the number of tokens; set dim={max(config.length, 1)} or more.")
    torch.set_num_threads(1)
    folder = Path(config.output or str(compose_run([]).paths.outputs) + "/figures/attention")
    names = options("attention") if config.attention == "all" else str(config.attention).split(",")
    for name in names:
        numbers = mixing(name, load_attention(name), config.length, config.dim, config.heads, config.seed)
        for path in save(draw_mixing(numbers), numbers, folder, name):
            Console(highlight=False).print(str(path), soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
