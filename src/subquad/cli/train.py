"""Trains one model, tests its best checkpoint and writes its record.

python train.py attention=dba task=lra/listops
python train.py -m attention=softmax,dba seed=0,1 task=uea/japanese_vowels
"""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from subquad.cli.command import run, user_errors
from subquad.config.choices import CONFIGS
from subquad.config.fingerprint import finished
from subquad.config.validate import check_sweep, checked_overrides
from subquad.training import summary
from subquad.training.distributed import rank


def main() -> None:
    """Trains the run, or the runs of the sweep, of the command line."""
    check_sweep(sys.argv[1:])
    sys.argv[1:] = checked_overrides(sys.argv[1:])
    _train()


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@user_errors
def _train(config: DictConfig) -> float:
    """Trains one run, or shows its record if it has finished before; returns its best validation metric."""
    folder = Path(config.paths.run)
    record = finished(config)
    note = "" if record is None else " (finished before, not trained again)"
    if record is None:
        from subquad.training.run import train  # slow import, which --help and --cfg do not need

        record = train(config)
    elif not rank():
        from subquad.training.resume import check_finished
        from subquad.training.wandb_run import log_finished

        check_finished(config, record, folder)
        log_finished(config, record, folder)
    if config.evaluate and not rank():
        from subquad.training.evaluation import evaluate_missing

        evaluate_missing(config)
    if not rank():
        summary.show(record, folder, note)
    return record.metrics[config.task.monitor]


if __name__ == "__main__":  # sweeps, Slurm jobs and the processes of a run start `python -m subquad.cli.train`
    run("train")
