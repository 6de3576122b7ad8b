"""Trains one model, tests its best checkpoint and writes its record.

python train.py attention=dba task=lra/listops
python train.py -m attention=softmax,dba seed=0,1 task=uea/japanese_vowels
"""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from subquad import records
from subquad.run import report
from subquad.run.doors import prepare_process, user_errors
from subquad.run.processes import rank

prepare_process()


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
@user_errors
def main(config: DictConfig) -> float:
    """Runs one composed configuration, or shows it where it finished before; returns the best validation metric."""
    run = Path(config.paths.run)
    record = records.read(run)
    note = "" if record is None else " (finished before, not trained again)"
    if record is None:
        from subquad.run.train import train  # heavy: after composition, so that --help and --cfg answer at once

        record = train(config)
    elif not rank():
        from subquad.run.checkpoints import check_finished

        check_finished(config, record, run)
    if config.evaluate and not rank():
        from subquad.run.evaluate import evaluate_missing

        evaluate_missing(config)
    if not rank():
        report.show(record, run, note)
    return record.metrics[config.task.monitor]


if __name__ == "__main__":
    main()
