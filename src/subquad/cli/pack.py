"""Writes the trained weights of a run, its record and what it knows of its data into one portable file.

python scripts/pack.py outputs/runs/lra/listops/dba
python scripts/pack.py outputs/runs/lra/listops/dba output=listops.safetensors
python scripts/pack.py outputs/runs/lra/listops/dba upload=someone/listops   # after: hf auth login

The folder is that of a run, or one above it where no other run is.

In Python, load_pretrained("listops.safetensors") or load_pretrained("someone/listops") is the model with these weights,
in evaluation mode. A model of your own data predicts from the file: scripts/predict.py run=listops.safetensors data=...
"""

import sys
from pathlib import Path

from subquad.cli.command import script_settings
from subquad.utils.errors import UserError


def main() -> None:
    """Packs the run, uploads it if asked to, and prints the path and the size of the file and its address."""
    runs = [argument for argument in sys.argv[1:] if "=" not in argument]
    rest = [argument for argument in sys.argv[1:] if "=" in argument]
    config = script_settings({"output": None, "upload": None}, rest)
    if len(runs) != 1:
        raise UserError("Name one run by its folder, as in: python scripts/pack.py outputs/runs/lra/listops/dba")
    from subquad import records
    from subquad.training import hub
    from subquad.training.bundle import pack

    run = Path(runs[0])
    output = Path(config.output or records.only_run(run)[0] / hub.FILE)
    pack(run, output)
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")
    if config.upload is not None:
        print(f"{config.upload}: {hub.upload(output, config.upload)}")
