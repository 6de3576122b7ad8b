"""Writes what a model that was trained on your own data says of further rows: a class or a number each, as a CSV file.

python scripts/predict.py run=outputs/runs/text/custom/dba data=new.csv
python scripts/predict.py run=outputs/runs/images/custom/dba data=/path/to/photos output=classes.csv
python scripts/predict.py run=model.safetensors data=new.csv

run= is the folder of a run, or one above it where no other run is; or a bundle that scripts/pack.py wrote, a file or
hf://<repository>, which needs no training data. data= is a file or folder like one that it was trained on: a table
of texts or token ids, a folder with tokens.npy, an image or a folder of images, a .ts file. Labels may be there and are
not read; rows are prepared as in training. Overrides that begin with `data.` change how data= is read (data.encoding,
data.quotes, data.text, data.ids), or where the files of the run are now: data.train=moved.csv. trust_code=true admits a
bundle with classes of its author. The file (by default <name>_predictions.csv in the current folder) has a line for
each row: its number, or the path of the image; the prediction; the probability of each class.
"""

import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from subquad.cli.command import script_settings
from subquad.config.overrides import for_yaml
from subquad.utils.atomic import atomic_write
from subquad.utils.display import counted
from subquad.utils.errors import UserError


def main() -> None:
    """Writes the file; prints its path, the number of rows and how often each class was predicted."""
    changes = [argument for argument in sys.argv[1:] if argument.startswith("data.")]
    given = [argument for argument in sys.argv[1:] if argument not in changes]
    config = script_settings({"run": None, "data": None, "output": None, "trust_code": False}, given)
    if config.run is None or config.data is None:
        raise UserError(
            "Name a run or a bundle, and further rows, as in: python scripts/predict.py run=outputs/runs/text/custom "
            "data=new.csv"
        )
    from subquad.training.evaluation import predict  # slow import

    place = Path(config.data).expanduser()
    output = Path(config.output or f"{place.stem}_predictions.csv")
    moved: Any = OmegaConf.to_container(OmegaConf.from_dotlist([for_yaml(change) for change in changes]))
    found = predict(config.run, place, moved.get("data", {}), trust_code=config.trust_code)
    if found.classes:
        chosen = [found.classes[i] for i in found.values.argmax(1)]
        shares = [[f"{share:.6f}" for share in row] for row in found.values]
        counts = " (" + ", ".join(f"{name} {count}" for name, count in Counter(chosen).most_common()) + ")"
    else:
        chosen, shares, counts = [f"{value:.6g}" for (value,) in found.values], [[]] * len(found.values), ""
    with atomic_write(output) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["row", "prediction", *found.classes])
        lines.writerows([name, one, *row] for name, one, row in zip(found.names, chosen, shares, strict=True))
    print(f"{output}: {counted(len(chosen), 'row')}{counts}")
