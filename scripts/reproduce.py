"""Runs every cell of a paper's table and shows it beside the printed numbers.

python scripts/reproduce.py table=dba/2 scale=laptop
python scripts/reproduce.py table=primal_dual/1 columns=[Attention-BN] rows=[JapaneseVowels] seeds=[0,1]
python scripts/reproduce.py table=dba/2 hydra/launcher=slurm       # the same on a cluster
python scripts/reproduce.py table=dba/2 run=false                  # only shows what there is
python scripts/reproduce.py table=dba/2 run=false compare=[DBA,Luna]   # does one row (or column) beat another?

Finished runs are not trained again, interrupted ones go on, failed ones are tried once more: the same command, typed
again, does what is left. What rows=, columns= and seeds= select is trained; words of train.py that leave a cell what it
is (scale=, data=standin, protocol=, trainer=, logger=, hydra/...) go to every run.
"""

import sys

from omegaconf import OmegaConf

from subquad.errors import UserError
from subquad.run import wandb_runs
from subquad.run.cells import Runs, load_table
from subquad.run.doors import answer_help, prepare_process, script_settings
from subquad.run.lacking import lacking
from subquad.run.launch import train_all
from subquad.run.measured import measured_values
from subquad.run.show_table import show_table
from subquad.tables.duel import duel, opponents

DEFAULTS = {"table": "???", "rows": [], "columns": [], "seeds": None, "run": True, "again": False, "compare": []}
PASSED = ("scale=", "data=", "protocol=", "trainer", "logger", "hydra", "paths.")

answer_help(__doc__)
prepare_process(check_choices=False)


def main() -> int:
    """Trains and measures what is missing, prints the table; 1 where a run failed."""
    passed = [word for word in sys.argv[1:] if word.startswith(PASSED)]
    config = script_settings(OmegaConf.create(DEFAULTS), [word for word in sys.argv[1:] if word not in passed])
    if OmegaConf.is_missing(config, "table"):
        raise UserError("Which table? Say table=<paper>/<number>, for example table=dba/2.")
    table = load_table(config.table).select([str(r) for r in config.rows], [str(c) for c in config.columns])
    seeds = list(range(table.seeds)) if config.seeds is None else [int(seed) for seed in config.seeds]
    if not table.cells or not (seeds or table.seeds == 0):
        raise UserError("Nothing is selected; widen rows=, columns= or seeds=.")
    names = [str(name) for name in config.compare or []]
    if names:
        opponents(table, names)
    choices = tuple(word for word in passed if not word.startswith("hydra"))
    dashboard = wandb_runs.asked(choices)
    runs = Runs(choices)
    failed = False
    if config.run:
        jobs = [job for job in runs.jobs(table, seeds) if not job.finished]
        runs.remember()
        if dashboard:
            jobs = wandb_runs.labelled(jobs, table.name)
        failed = bool(jobs) and train_all(jobs, [word for word in passed if word.startswith("hydra")])
    measured, unmeasured = measured_values(table, choices, config.run, config.again)
    values = runs.values(table, seeds, {place: v for place, v in measured.items() if not isinstance(v, str)})
    runs.remember()
    small = [word for word in choices if word.startswith(("scale=", "data=")) and word != "scale=paper"]
    said = {place: value for place, value in measured.items() if isinstance(value, str)}
    without = lacking(table, values, choices)
    note = f" ({', '.join(small)}: no reproduction)" if small else ""
    show_table(table, values, not small, note, said, unmeasured, without)
    if dashboard:
        folder = wandb_runs.log_table(table, values, not small, choices, without)
        sys.stdout.write(f"Weights & Biases has the table: {folder}/wandb\n")
    if names:
        sys.stdout.write("\n".join(duel(table, values, names)) + "\n")
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
