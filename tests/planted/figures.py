"""Planted bugs of the figures."""

from planted import Bug

FIGURES, HEADS = "tests/figures", "tests/measure/test_head_weights.py"

BUGS = [
    Bug(
        "a mean over the tasks that are there",
        "figures/bubbles.py",
        "if known and len(known) == len(records)",
        "if known",
        FIGURES,
    ),
    Bug(
        "rows and columns of runs are exchanged", "figures/run_grid.py", "row_key}={row}", "row_key}={column}", FIGURES
    ),
    Bug(
        "the last range is open",
        "figures/accuracy_by_length.py",
        " | ((length == high) & (high == self.edges[-1]))",
        "",
        FIGURES,
    ),
    Bug("seconds of a batch", "figures/cost_by_length.py", "costs.peak / batch", "costs.peak / 2 / batch", FIGURES),
    Bug(
        "fixed tokens do not fix the batch",
        "figures/cost_by_length.py",
        "self.tokens // length",
        "self.tokens // 2 // length",
        FIGURES,
    ),
    Bug(
        "operations of the baseline only",
        "figures/cost_ratios.py",
        "ours[what] / theirs[what]",
        "theirs[what] / theirs[what]",
        FIGURES,
    ),
    Bug("W_r is shown as W_c", "figures/compression.py", "carry, keys=True", "carry", FIGURES),
    Bug(
        "entropy over the padded length",
        "measure/concentration.py",
        "            real = masks.context",
        "            real = real",
        "tests/measure/test_concentration.py",
    ),
    Bug("padded sequences enter the spectrum", "figures/spectrum.py", "not bool(inputs[1].all())", "False", FIGURES),
    Bug("curves lack their steps", "figures/learning_curves.py", "[[step, row[name]]", "[[0, row[name]]", FIGURES),
    Bug(
        "shares of all models together",
        "figures/shares.py",
        "cost[what] / sums[what]",
        "cost[what] / sums[what] / len(self.models)",
        FIGURES,
    ),
    Bug(
        "energy of every operator",
        "figures/shares.py",
        "(image,), self.convention)",
        '(image,), "everything")',
        FIGURES,
    ),
    Bug("windows share no weight", "measure/head_weights.py", "* shares[:, None, None]", "* 1", HEADS),
    Bug(
        "distances of squares",
        "measure/head_weights.py",
        ".flatten(1).norm(dim=1)",
        ".flatten(1).square().sum(1)",
        HEADS,
    ),
    Bug("hooks stay", "measure/head_weights.py", "hook.remove()", "pass", HEADS),
    Bug("layers are summed", "measure/head_weights.py", "return sum(means) / len(means)", "return sum(means)", HEADS),
]
