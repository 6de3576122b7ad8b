"""Evaluates the best checkpoint of a finished run again and compares the result with the record.

python eval.py run=outputs/runs/uea/japanese_vowels/dba

The folder is that of a run, or one above it where no other run is.

Overrides that begin with `data.` change settings of the run's data. For ListOps with test expressions of four times the
length:

python eval.py run=outputs/runs/lra/listops/blrp data.multiply=4

For a ViT or BLRP on larger images than in training (a ViT's position embeddings are resampled):

python eval.py run=outputs/runs/cifar/cifar100/blrp data.size=128
"""

import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from subquad.cli.command import user_errors
from subquad.config.choices import CONFIGS
from subquad.config.validate import checked_overrides
from subquad.utils.errors import UserError


def main() -> None:
    """Composes configs/eval.yaml with the command line and evaluates."""
    overrides = [
        f"+{arg}" if arg.startswith("data.") else arg for arg in sys.argv[1:]
    ]  # "+": configs/eval.yaml lists none of them
    sys.argv[1:] = checked_overrides(overrides)
    for arg in overrides:
        key = arg.lstrip("+~").partition("=")[0].partition(".")[0].partition("/")[0]
        if "=" in arg and not arg.startswith("-") and key not in ("run", "split", "data", "hydra"):
            raise UserError(f"{arg} has no effect on a finished run; eval takes run, split and data.")
    if not any(arg.startswith(("run=", "-")) for arg in overrides):
        raise UserError("Name a run by its folder, as in: python eval.py run=outputs/runs/lra/listops/dba")
    _evaluate()


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="eval")
@user_errors
def _evaluate(config: DictConfig) -> float:
    """Prints the value of the metric and the one in the record."""
    from subquad.training.evaluation import evaluate  # slow import, which --cfg does not need

    changes: Any = OmegaConf.to_container(config.data)
    name, value, recorded = evaluate(Path(config.run), config.split, changes)
    print(f"{name} {value:.6f} (record: {'none' if recorded is None else f'{recorded:.6f}'})")
    return value
