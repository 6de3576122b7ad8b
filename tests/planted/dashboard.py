"""Planted bugs of reports in Weights & Biases."""

from planted import Bug

FILE, RUNS, TESTS = "run/dashboard.py", "run/wandb_runs.py", "tests/report/test_dashboard.py"
WANDB = "tests/run/test_wandb.py"
BUGS = [
    Bug("every report is a new one", FILE, "        if same:\n", "        if not same:\n", TESTS),
    Bug("any report of the project is renewed", FILE, "if known.display_name == report.title]", "]", TESTS),
    Bug("a project that is not there is an error", FILE, "except ValueError:", "except KeyError:", TESTS),
    Bug("curves of all scales together", FILE, ', f"scale:{scope.scale}"', "", TESTS),
    Bug("curves of any tag", FILE, "filters=expr.And(", "filters=expr.Or(", TESTS),
    Bug("curves of several settings are averaged", FILE, "config.choice.setting", "config.choice.attention", TESTS),
    Bug("reports of scales overwrite one another", FILE, "({scope.label})'", "'", TESTS),
    Bug("an entity is not heard", FILE, "entity=target.entity or \"\"", 'entity=""', TESTS),
    Bug("cells are counted at another scale", FILE, "if value.scope == scope)", "if True)", TESTS),
    Bug("starts of runs have no tags", RUNS, ", *([job.start.folder] if job.start else [])", ",", WANDB),
    Bug("settings have no name", RUNS, 'config.update({"choice": choice}', "config.update({}", WANDB),
]  # fmt: skip
