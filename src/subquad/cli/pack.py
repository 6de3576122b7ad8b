"""Writes the trained weights of a run with its configuration and record into one portable file.

python scripts/pack.py outputs/runs/lra/listops/dba/<fingerprint>-s0
python scripts/pack.py outputs/runs/lra/listops/dba/<fingerprint>-s0 output=listops.safetensors

In Python, load_pretrained("listops.safetensors") is the model with these weights, in evaluation mode.
"""

import sys
from pathlib import Path

from omegaconf import OmegaConf

from subquad.cli.command import script_settings
from subquad.utils.errors import UserError


def main() -> None:
    """Packs the run and prints the path and the size of the file."""
    runs = [argument for argument in sys.argv[1:] if "=" not in argument]
    rest = [argument for argument in sys.argv[1:] if "=" in argument]
    config = script_settings(OmegaConf.create({"output": None}), rest)
    if len(runs) != 1:
        raise UserError(
            "Name one run by its folder, as in: python scripts/pack.py outputs/runs/<task>/<attention>/<run>"
        )
    from subquad.training.bundle import FILE, pack

    output = Path(config.output or Path(runs[0]) / FILE)
    pack(Path(runs[0]), output)
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")
