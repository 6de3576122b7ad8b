"""Planted bugs of what Weights & Biases is given."""

from planted import Bug

RUNS, TRAIN, CONFIG = "run/wandb_runs.py", "run/train.py", "configs/logger/wandb.yaml"
TESTS = "tests/run/test_wandb.py"
BUGS = [
    Bug("a failed run stays open", TRAIN, "        wandb_runs.close_failed()\n", "", TESTS),
    Bug("a failed run is a success", RUNS, "wandb.finish(exit_code=1)", "wandb.finish(exit_code=0)", TESTS),
    Bug("tags are forgotten", RUNS, "(*(logger.experiment.tags or ()), *tags)", "logger.experiment.tags or ()", TESTS),
    Bug("runs of a table are in no group", RUNS, "tables[0] if len(tables)", "None if len(tables)", TESTS),
    Bug("an experiment is no group", CONFIG, "${first_of:${hydra:runtime.choices.experiment},", "${first_of:,", TESTS),
    Bug("every scale is one table", RUNS, '"words": sorted(choices), ', "", TESTS),
    Bug("hidden cells are shown", RUNS, "        if cell.column not in {", "        if not {", TESTS),
    Bug("verdicts are not counted", RUNS, 'row[COLUMNS.index("verdict")] for', "row[0] for", TESTS),
]  # fmt: skip
