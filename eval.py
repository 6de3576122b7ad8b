"""Evaluates the best checkpoint of a finished run again and compares the number with the record.

python eval.py run=outputs/runs/uea/japanese_vowels/dba/<fingerprint>-s0

Words that begin with `data.` change settings of the run's data. ListOps with each test expression four times as long:

python eval.py run=outputs/runs/lra/listops/blrp/<fingerprint>-s0 data.multiply=4

A ViT or BLRP on larger images than those it was trained on (positions of a ViT are resampled):

python eval.py run=outputs/runs/cifar/cifar100/blrp/<fingerprint>-s0 data.size=128
"""

import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from subquad.run.doors import prepare_process, user_errors

sys.argv[1:] = [f"+{word}" if word.startswith("data.") else word for word in sys.argv[1:]]  # keys of any data
prepare_process()
if not any(word.startswith(("run=", "-")) for word in sys.argv[1:]):
    sys.exit("Name a run by its folder, as in: python eval.py run=outputs/runs/<task>/<attention>/<fingerprint>-s0")


@hydra.main(version_base="1.3", config_path="configs", config_name="eval")
@user_errors
def main(config: DictConfig) -> float:
    """Prints the metric now and in the record."""
    from subquad.run.evaluate import evaluate  # after composition, so that --help and --cfg answer at once

    changes: Any = OmegaConf.to_container(config.data)
    name, value, recorded = evaluate(Path(config.run), config.split, changes)
    print(f"{name} {value:.6f} (record: {'none' if recorded is None else f'{recorded:.6f}'})")  # noqa: T201
    return value


if __name__ == "__main__":
    main()
